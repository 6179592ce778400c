"""Wake-ups: empty datagrams from a publisher to the addresses at which consumers listen, which are in the heartbeat
table. Of a few consumers all are woken, of many those that have the messages' partitions.

A publisher reads the addresses again every few seconds, so a consumer that has just started would not be woken at
first. Mostly it takes the place of another one, whose address refuses datagrams now (Linux says so), or of none. Then
consumers come and go, and for a while the addresses are read more often. What is read is not waited for: while another
session has locked a table, the addresses that are known have to do.
"""

from __future__ import annotations

import logging
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from django.db import Error

from sqlqueue.core.logfmt import logfmt
from sqlqueue.database.generations import placed
from sqlqueue.database.insert_sql import LogRow
from sqlqueue.database.lock_timeouts import unless_locked
from sqlqueue.database.log import Log
from sqlqueue.models.subscriber_heartbeat import AHEAD

logger = logging.getLogger("sqlqueue")

Address = tuple[str, int]
TopicPartition = tuple[str, int]  # topic and partition

ADDRESSES_LAST = 5.0  # seconds for which a publisher trusts the addresses that it has read
CHANGING_LAST = 0.25  # seconds, while consumers come and go
CHANGES_LAST = 10.0  # seconds for which they do, after a sign of it: a consumer needs some to start
AT_MOST = 0.02  # seconds for which a publisher waits for the lock of a table
MOST_ADDRESSES = 200
FEW = 8  # consumers: so many are woken by every publish
MOST_ROWS = 100  # of one publish: more are in most partitions
IP_RECVERR = 11  # Linux tells the socket that no process listens at an address; Python has the name from 3.14 on

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


class Owners(NamedTuple):
    """The addresses of those who have a topic's partitions, as of a time; None: they could not be read."""

    read_at: float
    of: Mapping[int, Sequence[Address]] | None


@dataclass
class Known:
    """The addresses of a database's consumers, as they were read. Times are the process's monotonic seconds."""

    addresses: list[Address] = field(default_factory=list)
    read_at: float = -ADDRESSES_LAST
    changing_until: float = 0.0
    owners: dict[str, Owners] = field(default_factory=dict)

    def outdated(self, read_at: float, now: float) -> bool:
        """Tell whether what was read then is to be read again."""
        return now - read_at >= (CHANGING_LAST if now < self.changing_until else ADDRESSES_LAST)

    def changing(self, now: float) -> None:
        """Record a sign that consumers come and go."""
        self.changing_until = now + CHANGES_LAST


_known: dict[Log, Known] = {}  # by alias
_socket: socket.socket | None = None


def partitions_of(log: Log, rows: Sequence[LogRow]) -> frozenset[TopicPartition] | None:
    """Return where messages are that were added, if that says whom to wake; None: all consumers."""
    known = _known.get(log)
    if known is None or len(known.addresses) <= FEW or not 0 < len(rows) <= MOST_ROWS:
        return None
    return frozenset((row.topic, row.partition) for row in placed(rows, log.layout)[0])


def wake(log: Log, partitions: Collection[TopicPartition] | None = None) -> None:
    """Send a datagram to each consumer of this database that has one of these partitions (None: to each). Where one is
    refused, those that have come since get one, too, if it is time to read the addresses again."""
    now = time.monotonic()
    known = _known.setdefault(log, Known())
    sent = _addresses(log, known, partitions, now)
    if not known.addresses or not _send(sent):
        return
    known.changing(now)
    _send([address for address in _addresses(log, known, partitions, now) if address not in sent])


def forget() -> None:
    """Forget all addresses: they are read at the next wake-up."""
    _known.clear()


def parsed(text: str) -> Address | None:
    """Return an address of the heartbeat table as host and port; None if it is none."""
    host, _, port = text.rpartition(":")
    return (host, int(port)) if host and port.isdecimal() and int(port) < 65536 else None


def _addresses(log: Log, known: Known, partitions: Collection[TopicPartition] | None, now: float) -> list[Address]:
    """Return whom to wake."""
    if known.outdated(known.read_at, now):
        _read(log, known, now)
    if partitions is None or len(known.addresses) <= FEW:
        return known.addresses
    found: dict[Address, None] = {}
    for topic, partition in partitions:
        owners = known.owners.get(topic)
        if (owners is None or known.outdated(owners.read_at, now)) and not log.connection.in_atomic_block:
            owners = known.owners[topic] = Owners(now, _owners(log, topic) or (owners and owners.of))
        if owners is None or owners.of is None:
            return known.addresses
        found |= dict.fromkeys(owners.of.get(partition, ()))
    return list(found)


def _owners(log: Log, topic: str) -> Mapping[int, Sequence[Address]] | None:
    found: dict[int, list[Address]] = defaultdict(list)
    try:
        for partition, text in unless_locked(log, OWNERS, (topic,), seconds=AT_MOST):
            if address := parsed(text):
                found[partition].append(address)
    except Error as error:
        logger.info(logfmt("notifier_silent", error=error))
        return None
    return found


def _read(log: Log, known: Known, now: float) -> None:
    known.read_at = now  # first, so that other threads do not all ask
    if log.connection.in_atomic_block:
        return
    try:
        found = unless_locked(log, ADDRESSES, (round(AHEAD.total_seconds() * 1_000_000),), seconds=AT_MOST)
    except Error as error:
        logger.info(logfmt("notifier_silent", error=error))
        return
    known.addresses = [address for (text,) in found if (address := parsed(text))]
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
