"""The bell: publishers ring after their commit, and sleeping consumers look at once. Polling is the safety net.

In this process a ring sets events; elsewhere it is a datagram to the addresses in the heartbeat table. It is best
effort and carries nothing that is trusted: whoever hears one just polls earlier.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable

from django.db import Error, connections, transaction

from sqlqueue.conf import settings
from sqlqueue.core.lines import line
from sqlqueue.models import SubscriberHeartbeat

logger = logging.getLogger("sqlqueue")

ADDRESSES_LAST = 5.0  # seconds for which a publisher trusts the addresses that it has read
QUIET = 0.002  # seconds within which one ring is enough: a consumer that was rung polls fast for longer than that
MOST_ADDRESSES = 200
RECOVERY = 0.1  # seconds that a doorbell rests after an error, so that one that stays does not keep it busy

_listeners: list[Callable[[], None]] = []
_lock = threading.Lock()
_addresses: dict[str, tuple[float, list[tuple[str, int]]]] = {}
_rung_at = 0.0
_socket: socket.socket | None = None


def ring_after_commit(alias: str) -> None:
    """Ring once the caller's transaction has committed; at once if there is none."""
    connection = connections[alias]
    if not connection.in_atomic_block:
        ring(alias)
        return
    if not any(getattr(hook[1], "rings", None) == alias for hook in connection.run_on_commit[-3:]):
        hook = _Ring(alias)
        transaction.on_commit(hook, using=alias, robust=True)


class _Ring:
    """A commit hook that can be recognised, so that a transaction that publishes often rings once."""

    def __init__(self, alias: str):
        self.rings = alias

    def __call__(self) -> None:
        ring(self.rings)


def ring(alias: str) -> None:
    """Wake the consumers of this database, here and elsewhere."""
    global _rung_at
    for listener in _listeners:
        listener()
    if not settings.WAKE:
        return
    now = time.monotonic()
    if now - _rung_at < QUIET:
        return
    _rung_at = now
    for address in _known_addresses(alias, now):
        try:
            _sender().sendto(b"", address)
        except OSError:  # nobody there, no route, buffer full: polling is the safety net
            continue


def listen(listener: Callable[[], None]) -> Callable[[], None]:
    """Call `listener` at every ring in this process; return what ends that."""
    with _lock:
        _listeners.append(listener)

    def stop() -> None:
        with _lock:
            if listener in _listeners:
                _listeners.remove(listener)

    return stop


def _sender() -> socket.socket:
    global _socket
    if _socket is None:
        _socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        _socket.setblocking(False)
    return _socket


def _known_addresses(alias: str, now: float) -> list[tuple[str, int]]:
    read_at, addresses = _addresses.get(alias, (-ADDRESSES_LAST, []))
    if now - read_at < ADDRESSES_LAST:
        return addresses
    _addresses[alias] = (now, addresses)  # first, so that other threads do not all ask
    if connections[alias].in_atomic_block:
        return addresses
    try:
        beats = SubscriberHeartbeat.objects.using(alias).alive().exclude(address="")
        found = beats.values_list("address", flat=True).distinct()[:MOST_ADDRESSES]
        addresses = [parsed for text in found if (parsed := _parse(text))]
    except Error as error:
        logger.info(line("bell_silent", error=error))
    _addresses[alias] = (now, addresses)
    return addresses


def _parse(text: str) -> tuple[str, int] | None:
    host, _, port = text.rpartition(":")
    return (host, int(port)) if host and port.isdecimal() and int(port) < 65536 else None


class Doorbell:
    """Where a consumer process hears rings from elsewhere. `address` is what goes into its heartbeat."""

    def __init__(self, host: str, rung: Callable[[], None]):
        self._rung = rung
        self._closed = threading.Event()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((host, 0))
        self.address = "{}:{}".format(*self._socket.getsockname())
        self._thread = threading.Thread(target=self._hear, name="sqlqueue-doorbell", daemon=True)
        self._thread.start()

    def _hear(self) -> None:
        while not self._closed.is_set():
            try:
                self._socket.recv(1)  # what a datagram holds is nothing to anybody
                self._rung()
            except Exception as error:
                if self._closed.wait(RECOVERY):
                    return
                logger.warning(line("doorbell_failed", error=error))

    def close(self) -> None:
        """Hear no more."""
        self._closed.set()
        try:
            self._socket.sendto(b"", self._socket.getsockname())  # what waits looks at once
            self._thread.join(1.0)
        except OSError:
            pass
        self._socket.close()
