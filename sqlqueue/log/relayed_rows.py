"""Relayed messages as they are read, and as they are added to their shard."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlqueue.conf import settings
from sqlqueue.core.keys import partition_of
from sqlqueue.database.clock import moment
from sqlqueue.database.insert_sql import LogRow
from sqlqueue.database.limits import check_row
from sqlqueue.database.scheduling import Due
from sqlqueue.database.statements import dialect, execute
from sqlqueue.exceptions import InvalidMessage
from sqlqueue.log.conflicts import Offer
from sqlqueue.log.relay import TABLE
from sqlqueue.log.topics import topic_info


def mark(number: int, id: str) -> str:
    """Return what tells a relayed message from every other one, also from one that gets its number after a restore."""
    return f"{number} {id}"


class Relayed(NamedTuple):
    """A message that waits, as it is read. left: seconds until it was published, so it is negative."""

    number: int
    topic: str
    key: str
    id: str
    payload: str
    headers: str | None
    priority: int
    group: str
    body: Any
    expires_after: float | None
    due: Any
    left: float

    @property
    def mark(self) -> str:
        """What tells it from every other one."""
        return mark(self.number, self.id)


def offer_at(target: str, row: Relayed) -> Offer:
    """Return a message as it is added to its shard. Raises InvalidMessage for what that cannot store."""
    info = topic_info(target, row.topic)
    if not 0 <= row.priority < info.priorities:
        raise InvalidMessage(f"priority {row.priority} is not one of topic {row.topic!r}, which has {info.priorities}")
    due: datetime | None = None if row.due is None else moment(row.due)
    expires = row.expires_after
    if expires is not None and due is None:  # it counts from the publish
        expires += float(row.left)
    partition = partition_of(row.key or row.id, info.partitions)
    new = LogRow(row.topic, partition, row.priority, row.key, row.id, row.payload, row.headers, row.group)
    new = new._replace(
        body=None if row.body is None else bytes(row.body),
        expires=None if expires is None else round(expires * 1_000) * 1_000,  # SQLite reads no exponents
    )
    check_row(target, new, settings.MAX_PAYLOAD_BYTES)
    return Offer(Due(new, None, due), named=True, replace=False, scheduled=due is not None)


def delete(source: str, numbers: Sequence[int]) -> None:
    """Delete relayed messages that have arrived, or that are not to."""
    if numbers:
        execute(source, dialect(source).delete(TABLE, "id", len(numbers)), numbers)
