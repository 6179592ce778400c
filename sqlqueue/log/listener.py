"""The listener of a consumer process: receives the notifications of publishers in other processes (log/notifier), and
questions (log/settle_notices)."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable

from sqlqueue.core.logfmt import logfmt

logger = logging.getLogger("sqlqueue")

RECOVERY = 0.1  # seconds that a listener pauses after an error, so that a lasting one does not keep it busy


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
