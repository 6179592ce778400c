"""The notifier: publishers notify after their commit, and sleeping consumers poll at once. Polling is the safety net.

In this process a notification calls the listeners; other processes get a datagram (log/wake_ups). It is best effort,
and its content is not used: a consumer that receives one polls earlier. Only questions (log/settle_notices) hold
something.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Hashable, Sequence

from sqlqueue.conf import settings
from sqlqueue.core.logfmt import logfmt
from sqlqueue.database.insert_sql import LogRow
from sqlqueue.database.log import Log
from sqlqueue.log import wake_ups

logger = logging.getLogger("sqlqueue")

QUIET = 0.002  # seconds within which one notification is enough: a notified consumer polls fast for longer than that
RECOVERY = 0.1  # seconds that a listener pauses after an error, so that a lasting one does not keep it busy

_listeners: list[Callable[[], None]] = []
_lock = threading.Lock()
_notified_at: dict[Hashable, float] = {}  # by alias, or by alias, topic and partition


def notify_after_commit(log: Log, rows: Sequence[LogRow] = ()) -> None:
    """Notify once the caller's transaction has committed; at once if there is none. rows: the messages that were added,
    if nothing else is to be seen: among many consumers only those that have their partitions are woken."""
    partitions, connection = wake_ups.partitions_of(log, rows), log.connection
    if not connection.in_atomic_block:
        notify(log, partitions)
        return
    for _, hook, *_ in connection.run_on_commit[-3:]:
        if isinstance(hook, _Notification) and hook.notifies == log:
            hook.add(partitions)
            return
    log.on_commit(_Notification(log, partitions), robust=True)


class _Notification:
    """A commit hook that can be recognised, so that a transaction that publishes often notifies once."""

    def __init__(self, log: Log, partitions: frozenset[wake_ups.TopicPartition] | None):
        self.notifies, self._partitions = log, partitions

    def add(self, partitions: frozenset[wake_ups.TopicPartition] | None) -> None:
        """Notify of what is there, too."""
        self._partitions = None if self._partitions is None or partitions is None else self._partitions | partitions

    def __call__(self) -> None:
        notify(self.notifies, self._partitions)


def notify(log: Log, partitions: frozenset[wake_ups.TopicPartition] | None = None) -> None:
    """Wake the consumers of this database that have these partitions (None: all of them), and those in this process."""
    for listener in _listeners:
        listener()
    if not settings.WAKE:
        return
    now = time.monotonic()
    if partitions is None:
        if not _quiet(log, now):
            wake_ups.wake(log)
    elif loud := [one for one in partitions if not _quiet((log, *one), now)]:
        wake_ups.wake(log, loud)


def _quiet(of: Hashable, now: float) -> bool:
    """Tell whether a notification has just been sent; if not, one is now."""
    if now - _notified_at.get(of, 0.0) < QUIET:
        return True
    _notified_at[of] = now
    return False


def listen(listener: Callable[[], None]) -> Callable[[], None]:
    """Call `listener` at every notification in this process; return the function that ends that."""
    with _lock:
        _listeners.append(listener)

    def stop() -> None:
        with _lock:
            if listener in _listeners:
                _listeners.remove(listener)

    return stop


class Listener:
    """Receives notifications of other processes, and their questions. address: host and port, for the heartbeat;
    asked: called with what a datagram holds and where it came from, tells whether that was a question; notified: called
    at each other one."""

    def __init__(
        self,
        host: str,
        notified: Callable[[], None],
        asked: Callable[[bytes, tuple[str, int]], bool] = lambda question, sender: False,
    ):
        self._notified, self._asked = notified, asked
        self._closed = threading.Event()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((host, 0))
        self.address = "{}:{}".format(*self._socket.getsockname())
        self._thread = threading.Thread(target=self._receive, name="sqlqueue-listener", daemon=True)
        self._thread.start()

    def _receive(self) -> None:
        while not self._closed.is_set():
            try:
                content, sender = self._socket.recvfrom(64)
                if not (content and self._asked(content, sender)):
                    self._notified()
            except Exception as error:
                if self._closed.wait(RECOVERY):
                    return
                logger.warning(logfmt("listener_failed", error=error))

    def send(self, address: tuple[str, int]) -> None:
        """Send an empty datagram from the address at which this listens."""
        try:
            self._socket.sendto(b"", socket.MSG_DONTWAIT, address)
        except OSError:  # it does not listen any more, no route, buffer full: who waits polls, too
            return

    def close(self) -> None:
        """End the thread and close the socket."""
        self._closed.set()
        try:
            self._socket.sendto(b"", self._socket.getsockname())  # wakes the thread
            self._thread.join(1.0)
        except OSError:
            pass
        self._socket.close()
