"""The relay, where it ends: messages that were published in a transaction on one shard and belong to another.

They wait in a table of the database whose transaction has published them, and a consumer process of that shard moves
them to their own, in the order of their keys. Two databases do not commit together, so what has been moved is known on
the side of the arrival: the transaction that adds messages there also stores their numbers and ids, on the condition
that no other process has added any since they were read. They are deleted afterwards; what is still there although it
is stored as arrived is only deleted. So a process that is killed, or frozen for hours, at any point leaves each message
in the log once.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import NamedTuple

from django.db import Error

from sqlqueue.conf import settings
from sqlqueue.core.logfmt import logfmt
from sqlqueue.core.outcomes import storable
from sqlqueue.database import retries
from sqlqueue.database.retries import ErrorKind
from sqlqueue.database.statements import dialect, execute
from sqlqueue.database.weight import STATEMENT
from sqlqueue.exceptions import SqlqueueError
from sqlqueue.log import batch_parts
from sqlqueue.log.conflicts import Offer, add_many
from sqlqueue.log.notifier import notify_after_commit
from sqlqueue.log.published import CREATED
from sqlqueue.log.relay import TABLE
from sqlqueue.log.relayed_rows import Relayed, delete, mark, offer_at
from sqlqueue.models import RelayedMessage
from sqlqueue.signals import announce, message_refused

__all__ = ["Moved", "Relayed", "arrivals", "delete", "mark", "move"]

logger = logging.getLogger("sqlqueue")

MOVED_AT_ONCE = 200
# The next ones of a shard, and how much they are. Index: (refused, shard, id).
NEXT = f"""
    SELECT id, LENGTH(payload) + COALESCE(LENGTH(body), 0) FROM {TABLE}
    WHERE refused = {{false}} AND shard = %s AND id > 0 ORDER BY id LIMIT {MOVED_AT_ONCE}
"""
READ = f"""
    SELECT id, topic, partition_key, message_id, payload, headers, priority, target_group, body, expires_after,
    {{due}}, {{left}} FROM {TABLE}
    WHERE refused = {{false}} AND shard = %s AND id BETWEEN %s AND %s ORDER BY id
"""
STILL_THERE = f"SELECT id FROM {TABLE} WHERE id IN ({{marks}})"
FIRST_ARRIVAL = "INSERT INTO sqlqueue_relay_arrival (source, version) VALUES (%s, 0) "
ARRIVALS = "SELECT version, arrived FROM sqlqueue_relay_arrival WHERE source = %s"
ARRIVE = "UPDATE sqlqueue_relay_arrival SET version = version + 1, arrived = %s WHERE source = %s AND version = %s"


class Moved(NamedTuple):
    """How many messages have left the table, and whether there may be more."""

    messages: int
    more: bool


def move(source: str, shard: str) -> Moved:
    """Move the next messages that wait here for a shard, at most 200, in their order. From any process, outside a
    transaction."""
    found = execute(source, NEXT, (shard,)).fetchall()
    if not found:
        return Moved(0, False)
    target, name = settings.shards[shard], settings.shard_name(source)
    version, arrived = arrivals(target, name)
    # After the version: what is there now is what that one knows of.
    rows = _read(source, shard, found[0][0], _last(found))
    # Not by what is still there: another process may have deleted some of them since they were read.
    new = [row for row in rows if row.mark not in arrived]
    refused: list[int] = []
    if new:
        try:
            refused, done = _bring(source, target, name, version, _still_there(source, arrived), new)
        except Error as error:
            if retries.classify(error) is not ErrorKind.DATA:
                raise
            logger.info(logfmt("relay_one_by_one", shard=shard, error=error))
            return _one_by_one(source, shard, new)
        if not done:  # another process has moved some
            return Moved(0, True)
    delete(source, [row.number for row in rows if row.number not in refused])
    return Moved(len(rows), True)


def _one_by_one(source: str, shard: str, new: Sequence[Relayed]) -> Moved:
    """Move messages of which the shard's database refuses one, each by itself; the refused one keeps the reason."""
    target, name = settings.shards[shard], settings.shard_name(source)
    moved = 0
    for earlier in new:
        version, arrived = arrivals(target, name)
        known = _still_there(source, arrived)
        fresh = _read(source, shard, earlier.number, earlier.number)  # after the version, as in `move`
        if not fresh or fresh[0].mark in known:
            continue
        [row] = fresh
        try:
            refused, done = _bring(source, target, name, version, known, [row])
        except Error as error:
            if retries.classify(error) is not ErrorKind.DATA:
                raise
            _refuse(source, row, f"the database of shard {shard!r} refuses it: {error}")
            continue
        if not done:
            return Moved(moved, True)
        if not refused:
            delete(source, [row.number])
            moved += 1
    return Moved(moved, True)


def _last(found: Sequence[tuple[int, int]]) -> int:
    """Return the number up to which messages make one transaction of some megabyte."""
    total = 0
    for number, size in found:
        total += size
        if total >= STATEMENT:
            return number
    return found[-1][0]


def _read(source: str, shard: str, first: int, last: int) -> list[Relayed]:
    syntax = dialect(source)
    text = READ.replace("{due}", syntax.epoch("due_at")).replace("{left}", syntax.remaining("created_at"))
    return [Relayed(*row) for row in execute(source, text, (shard, first, last)).fetchall()]


def arrivals(target: str, name: str) -> tuple[int, set[str]]:
    """Return the version of what has arrived on a shard from the one of this name, and the marks of what may still be
    there."""
    found = execute(target, ARRIVALS, (name,)).fetchone()
    if found is None:
        execute(target, FIRST_ARRIVAL + dialect(target).ignore("source"), (name,))
        found = execute(target, ARRIVALS, (name,)).fetchone()
    version, arrived = found
    return version, set(json.loads(arrived or "[]"))


def _still_there(source: str, arrived: set[str]) -> set[str]:
    """Return those that have arrived and not been deleted here."""
    if not arrived:
        return set()
    numbers = {int(mark.partition(" ")[0]): mark for mark in arrived}
    text = STILL_THERE.replace("{marks}", ", ".join(["%s"] * len(numbers)))
    return {numbers[number] for (number,) in execute(source, text, list(numbers)).fetchall()}


def _bring(
    source: str, target: str, name: str, version: int, known: set[str], rows: Sequence[Relayed]
) -> tuple[list[int], bool]:
    """Add messages to their shard. Return the numbers of those that it refuses, and whether the others are there now:
    False if another process has added some since the version was read. known: those that have arrived before."""
    offers, refused, marks = [], [], sorted(known)
    for row in rows:
        try:
            offers.append(offer_at(target, row))
            marks.append(row.mark)  # not of a refused one: it may be corrected, and moved then
        except SqlqueueError as error:
            _refuse(source, row, str(error))
            refused.append(row.number)
    if not offers:
        return refused, True
    return refused, retries.run(target, _arrive, target, name, version, json.dumps(marks), offers)


def _arrive(target: str, name: str, version: int, arrived: str, offers: Sequence[Offer]) -> bool:
    """Add messages; those whose ids are taken are no members of batches any more."""
    if not execute(target, ARRIVE, (arrived, name, version)).rowcount:
        return False
    created = [status == CREATED for status in add_many(target, offers)]
    batch_parts.add_arrived(target, [offer.message.row for offer in offers], created)
    notify_after_commit(target, [offer.message.row for offer in offers if not offer.scheduled])
    return True


def _refuse(source: str, row: Relayed, reason: str) -> None:
    reason = storable(reason)
    RelayedMessage.objects.using(source).filter(pk=row.number).update(refused=True, refusal=reason)
    announce(message_refused, move, id=row.number, topic=row.topic, reason=reason)
