"""The notifier: publishers notify after their commit, and sleeping consumers poll at once. Polling is the safety net.

In this process a notification calls the listeners. Other processes get an empty datagram (Listener) at the addresses
that are in the heartbeat table: of a few consumers all of them, of many those that have the messages' partitions. A
publisher reads the addresses again after two seconds. What is read is not waited for: while another session has locked
a table, the addresses that are known have to do.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from django.db import Error

from sqlqueue.conf import settings
from sqlqueue.core.logfmt import logfmt
from sqlqueue.database.generations import placed
from sqlqueue.database.insert_sql import LogRow
from sqlqueue.database.lock_timeouts import unless_locked
from sqlqueue.database.log import Log
from sqlqueue.models.subscriber import AHEAD

logger = logging.getLogger("sqlqueue")

Address = tuple[str, int]
TopicPartition = tuple[str, int]  # topic and partition

QUIET = 0.002  # seconds within which one notification is enough: a notified consumer polls fast for longer than that
ADDRESSES_LAST = 2.0  # seconds for which a publisher trusts the addresses that it has read
AT_MOST = 0.02  # seconds for which a publisher waits for the lock of a table
MOST_ADDRESSES = 200
FEW = 8  # consumers: so many are woken by every publish
RECOVERY = 0.1  # seconds that a listener pauses after an error, so that a lasting one does not keep it busy
MOST_ROWS = 100  # of one publish: more are in most partitions

# Of the living subscribers. Not by the ORM, which takes a publisher ten times as long.
ADDRESSES = f"""
    SELECT DISTINCT address FROM sqlqueue_subscriber_heartbeat
    WHERE expires_at > {{now}} AND beat_at < {{later}} AND address > '' LIMIT {MOST_ADDRESSES}
"""
# Who has the partitions of a topic. Index: the leases' and the heartbeats' unique keys.
OWNERS = """
    SELECT DISTINCT l."partition", h.address FROM sqlqueue_partition_lease l JOIN sqlqueue_subscriber_heartbeat h
    ON h.subscriber = l.holder AND h.consumer_group = l.consumer_group AND h.topic = l.topic
    WHERE l.topic = %s AND h.address > ''
"""

_listeners: list[Callable[[], None]] = []
_lock = threading.Lock()
_socket: socket.socket | None = None


def notify_after_commit(log: Log, rows: Sequence[LogRow] = ()) -> None:
    """Notify once the caller's transaction has committed; at once if there is none. rows: the messages that were added,
    if nothing else is to be seen: among many consumers only those that have their partitions are woken."""
    waker, connection = waker_of(log), log.connection
    partitions = waker.partitions_of(rows) if len(waker.addresses) > FEW else None
    if not connection.in_atomic_block:
        waker.notify(partitions)
        return
    for _, hook, *_ in connection.run_on_commit[-3:]:
        if isinstance(hook, _Notification) and hook.waker is waker:
            hook.add(partitions)
            return
    log.on_commit(_Notification(waker, partitions), robust=True)


def listen(listener: Callable[[], None]) -> Callable[[], None]:
    """Call `listener` at every notification in this process; return the function that ends that."""
    with _lock:
        _listeners.append(listener)

    def stop() -> None:
        with _lock:
            if listener in _listeners:
                _listeners.remove(listener)

    return stop


class _Notification:
    """A commit hook that can be recognised, so that a transaction that publishes often notifies once."""

    def __init__(self, waker: Waker, partitions: frozenset[TopicPartition] | None):
        self.waker, self._partitions = waker, partitions

    def add(self, partitions: frozenset[TopicPartition] | None) -> None:
        """Notify of what is there, too."""
        self._partitions = None if self._partitions is None or partitions is None else self._partitions | partitions

    def __call__(self) -> None:
        self.waker.notify(self._partitions)


class Owners(NamedTuple):
    """The addresses of those who have a topic's partitions, as of a time; None: they could not be read."""

    read_at: float
    of: Mapping[int, Sequence[Address]] | None


class Waker:
    """Wakes the consumers of one log. Times are the process's monotonic seconds."""

    def __init__(self, log: Log):
        self._log = log
        self.addresses: list[Address] = []
        self._read_at = -ADDRESSES_LAST
        self._owners: dict[str, Owners] = {}
        self._notified_at: dict[TopicPartition | None, float] = {}

    def partitions_of(self, rows: Sequence[LogRow]) -> frozenset[TopicPartition] | None:
        """Return where messages are that were added, if that says whom to wake; None: all consumers."""
        if not 0 < len(rows) <= MOST_ROWS:
            return None
        return frozenset((row.topic, row.partition) for row in placed(rows, self._log.layout)[0])

    def notify(self, partitions: Collection[TopicPartition] | None = None) -> None:
        """Wake the consumers that have these partitions (None: all of them), and those in this process."""
        for listener in _listeners:
            listener()
        if not settings.WAKE:
            return
        now, last = time.monotonic(), self._notified_at
        loud = [one for one in partitions or (None,) if now - last.get(one, 0.0) >= QUIET]
        if not loud:
            return
        last.update(dict.fromkeys(loud, now))
        if now - self._read_at >= ADDRESSES_LAST:
            self._read(now)
        if self.addresses:
            _send(self.addresses if partitions is None else self._owners_of([one for one in loud if one], now))

    def _owners_of(self, partitions: Sequence[TopicPartition], now: float) -> Collection[Address]:
        if len(self.addresses) <= FEW:
            return self.addresses
        found: dict[Address, None] = {}
        for topic, partition in partitions:
            owners = self._owners.get(topic)
            if (owners is None or now - owners.read_at >= ADDRESSES_LAST) and not self._log.connection.in_atomic_block:
                owners = self._owners[topic] = Owners(now, self._read_owners(topic) or (owners and owners.of))
            if owners is None or owners.of is None:
                return self.addresses
            found |= dict.fromkeys(owners.of.get(partition, ()))
        return found

    def _read_owners(self, topic: str) -> Mapping[int, Sequence[Address]] | None:
        rows = self._found(OWNERS, (topic,))
        if rows is None:
            return None
        found: dict[int, list[Address]] = defaultdict(list)
        for partition, text in rows:
            if address := parsed(text):
                found[partition].append(address)
        return found

    def _read(self, now: float) -> None:
        self._read_at = now  # first, so that other threads do not all ask
        if not self._log.connection.in_atomic_block:
            rows = self._found(ADDRESSES, (round(AHEAD.total_seconds() * 1_000_000),))
            if rows is not None:
                self.addresses = [address for (text,) in rows if (address := parsed(text))]

    def _found(self, text: str, values: Sequence[object]) -> Sequence[Any] | None:
        """Return what a statement finds; None if the table is locked, or cannot be read."""
        try:
            return unless_locked(self._log, text, values, seconds=AT_MOST)
        except Error as error:
            logger.info(logfmt("notifier_silent", error=error))
            return None


waker_of = cache(Waker)


def forget() -> None:
    """Forget all addresses: they are read at the next notification."""
    waker_of.cache_clear()


def parsed(text: str) -> Address | None:
    """Return an address of the heartbeat table as host and port; None if it is none."""
    host, _, port = text.rpartition(":")
    return (host, int(port)) if host and port.isdecimal() and int(port) < 65536 else None


def _send(addresses: Collection[Address]) -> None:
    global _socket
    if _socket is None:
        _socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        _socket.setblocking(False)
    for address in addresses:
        try:
            _socket.sendto(b"", address)
        except OSError:  # no route, buffer full: polling is the safety net
            continue


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
