"""Looking back: ids, and keys with unique_for, on the shards to which a key has belonged before.

An id is unique on all of them. Where a key has left a shard, what that one has of it is final once the transactions
that published there before have ended: on MySQL they have when the key leaves, on PostgreSQL when the end of the former
partitions is known.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from sqlqueue.conf import settings
from sqlqueue.database.aside import aside
from sqlqueue.database.chunks import in_chunks
from sqlqueue.database.ids import IN_LOG, IN_SCHEDULE, Identity, identity_of, taken
from sqlqueue.database.insert_sql import LogRow
from sqlqueue.database.statements import dialect
from sqlqueue.exceptions import InvalidMessage, Unreachable
from sqlqueue.log import unique_messages
from sqlqueue.log.conflicts import Offer
from sqlqueue.log.placement import placement
from sqlqueue.log.routing import former_shards

PAUSE = 0.05  # seconds between two looks whether earlier transactions have ended
LONGEST_WAIT = 60.0  # seconds for which they are waited for
GOING = "SELECT 1 FROM sqlqueue_epoch_slot WHERE topic = %s LIMIT 1"  # index: (topic, slot)


def found_elsewhere(alias: str, offers: Sequence[Offer]) -> dict[int, str]:
    """Return which of these offers are ignored, by their indexes, with the id of the message that keeps each out: for a
    shard to which its key has belonged has that. Nothing is read for topics whose shards were never changed.

    Raises InvalidMessage for what is to replace a message there; the database's error if such a shard does not answer;
    and Unreachable if transactions that published there stay open for a minute.
    """
    if not settings.sharded:
        return {}
    asked: dict[str, list[int]] = defaultdict(list)
    for index, offer in enumerate(offers):
        if offer.named or offer.unique_for is not None:
            for former in _former(alias, offer.message.row):
                asked[former].append(index)
    found: dict[int, str] = {}
    for former, indexes in asked.items():
        _wait_for_end(former, {offers[index].message.row.topic for index in indexes})
        with aside(former) as run:
            found.update(_ids(former, run, offers, indexes))
        found.update(_pending(former, offers, indexes))
    return found


def ids_elsewhere(alias: str, rows: Sequence[LogRow]) -> set[Identity]:
    """Return which of these ids are in the log, or scheduled, on another shard to which their keys have belonged."""
    asked: dict[str, list[LogRow]] = defaultdict(list)
    for row in rows:
        for former in _former(alias, row):
            asked[former].append(row)
    found: set[Identity] = set()
    for former, some in asked.items():
        _wait_for_end(former, {row.topic for row in some})
        with aside(former) as run:
            found |= _taken(former, run, IN_LOG, some) | _taken(former, run, IN_SCHEDULE, some)
    return found


def _former(alias: str, row: LogRow) -> list[str]:
    placed = placement(row.topic)
    former = [settings.shards[shard] for shard in former_shards(row.topic, placed, row.key or row.id)]
    return [each for each in former if each != alias]


def _ids(alias: str, run: Callable[[str, Any], Any], offers: Sequence[Offer], indexes: Sequence[int]) -> dict[int, str]:
    named = {index: offers[index].message.row for index in indexes if offers[index].named}
    if not named:
        return {}
    scheduled = _taken(alias, run, IN_SCHEDULE, list(named.values()))
    in_log = _taken(alias, run, IN_LOG, list(named.values()))  # in this order: what is moved in between is seen here
    found = {}
    for index, row in named.items():
        identity = identity_of(row)
        if offers[index].replace and identity in scheduled and identity not in in_log:
            raise _not_replaced(alias, row.topic, row.id, row.key)
        if identity in scheduled or identity in in_log:
            found[index] = row.id
    return found


def _pending(alias: str, offers: Sequence[Offer], indexes: Sequence[int]) -> dict[int, str]:
    found = {}
    for index in indexes:
        offer, row = offers[index], offers[index].message.row
        if offer.unique_for is None:
            continue
        pending = unique_messages.look(alias, unique_messages.digest_of(row.topic, row.key))
        if pending is None or pending.age >= offer.unique_for:
            continue
        if offer.replace and pending.scheduled:
            raise _not_replaced(alias, row.topic, pending.id, row.key)
        found[index] = pending.id
    return found


def _not_replaced(alias: str, topic: str, id: str, key: str) -> InvalidMessage:
    return InvalidMessage(
        f"message {id!r} of topic {topic!r} is scheduled on shard {settings.shard_name(alias)!r}, from which its key"
        f" has moved, and cannot be replaced there: cancel({topic!r}, id={id!r}, key={key!r}) first"
    )


def _taken(alias: str, run: Callable[[str, Any], Any], table: str, rows: Sequence[LogRow]) -> set[Identity]:
    known: set[Identity] = set()
    for some in in_chunks(alias, [identity_of(row) for row in rows]):
        known.update((topic, id, key) for topic, id, key in run(*taken(dialect(alias), table, some)).fetchall())
    return known


def _wait_for_end(alias: str, topics: set[str]) -> None:
    """Wait until no transaction is open any more that may have published a key there before it left (PostgreSQL)."""
    if dialect(alias).slotted or not dialect(alias).gated:
        return
    until = time.monotonic() + LONGEST_WAIT
    for topic in topics:
        while True:
            with aside(alias) as run:
                if run(GOING, (topic,)).fetchone() is None:
                    break
            if time.monotonic() > until:
                raise Unreachable(
                    f"transactions on shard {settings.shard_name(alias)!r} have been open since before keys of topic"
                    f" {topic!r} moved, and may have published this id there: end them (`queuedoctor` names them)"
                )
            time.sleep(PAUSE)
