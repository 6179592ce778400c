"""Wake-ups: empty datagrams from a publisher to the addresses at which consumers listen, which are in the heartbeat
table.

A publisher reads the addresses again every few seconds, so a consumer that has just started would not be woken at
first. Mostly it takes the place of another one, whose address refuses datagrams now (Linux says so), or of none. Then
consumers come and go, and for a while the addresses are read more often.
"""

from __future__ import annotations

import logging
import socket
import sys
import time
from dataclasses import dataclass, field

from django.db import Error, connections

from sqlqueue.core.logfmt import logfmt
from sqlqueue.models import SubscriberHeartbeat

logger = logging.getLogger("sqlqueue")

Address = tuple[str, int]

ADDRESSES_LAST = 5.0  # seconds for which a publisher trusts the addresses that it has read
CHANGING_LAST = 0.25  # seconds, while consumers come and go
CHANGES_LAST = 10.0  # seconds for which they do, after a sign of it: a consumer needs some to start
MOST_ADDRESSES = 200
IP_RECVERR = 11  # Linux tells the socket that no process listens at an address; Python has the name from 3.14 on


@dataclass
class Known:
    """The addresses of a database's consumers, as they were read. Times are the process's monotonic seconds."""

    addresses: list[Address] = field(default_factory=list)
    read_at: float = -ADDRESSES_LAST
    changing_until: float = 0.0

    def outdated(self, now: float) -> bool:
        """Tell whether the addresses are to be read again."""
        return now - self.read_at >= (CHANGING_LAST if now < self.changing_until else ADDRESSES_LAST)

    def changing(self, now: float) -> None:
        """Record a sign that consumers come and go."""
        self.changing_until = now + CHANGES_LAST


_known: dict[str, Known] = {}  # by alias
_socket: socket.socket | None = None


def wake(alias: str) -> None:
    """Send a datagram to each consumer of this database. Where one is refused, those that have come since get one, too,
    if it is time to read the addresses again."""
    now = time.monotonic()
    known = _known.setdefault(alias, Known())
    if known.outdated(now):
        _read(alias, known, now)
    sent = known.addresses
    if not _send(sent):
        return
    known.changing(now)
    if known.outdated(now):
        _read(alias, known, now)
        _send([address for address in known.addresses if address not in sent])


def forget() -> None:
    """Forget all addresses: they are read at the next wake-up."""
    _known.clear()


def parsed(text: str) -> Address | None:
    """Return an address of the heartbeat table as host and port; None if it is none."""
    host, _, port = text.rpartition(":")
    return (host, int(port)) if host and port.isdecimal() and int(port) < 65536 else None


def _read(alias: str, known: Known, now: float) -> None:
    known.read_at = now  # first, so that other threads do not all ask
    if connections[alias].in_atomic_block:
        return
    try:
        beats = SubscriberHeartbeat.objects.using(alias).alive().exclude(address="")
        found = beats.values_list("address", flat=True).distinct()[:MOST_ADDRESSES]
        known.addresses = [address for text in found if (address := parsed(text))]
    except Error as error:
        logger.info(logfmt("notifier_silent", error=error))
    if not known.addresses:
        known.changing(now)


def _send(addresses: list[Address]) -> bool:
    """Send to each address; return whether one of them has refused a datagram."""
    sender, refused = _sender(), False
    for address in addresses:
        try:
            try:
                sender.sendto(b"", address)
            except ConnectionRefusedError:  # an earlier one was: this one was not sent
                refused = True
                sender.sendto(b"", address)
        except OSError:  # no route, buffer full: polling is the safety net
            continue
    return sender.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0 or refused


def _sender() -> socket.socket:
    global _socket
    if _socket is None:
        _socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        _socket.setblocking(False)
        if sys.platform == "linux":
            _socket.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
    return _socket
