"""Retention: which messages of a topic may be deleted, and what is kept of them. Sweeps: results, progress, receipts
and collected messages that have no use any more are deleted, in bounded statements, and without waiting for rows that
another transaction has locked.

With `retention_from="acked"` it counts from acked marks: since when every group has settled a stream up to an offset.
Each collection that finds the lowest watermark further on marks it, at most MARKS times within the retention. So
nothing is released before its time, and everything by a hundredth of the retention later, and the next collection. Of a
topic with `keep_collected`, collection moves what it deletes to a table of its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from sqlqueue.conf import settings
from sqlqueue.core.bounds import DAY
from sqlqueue.core.outcomes import ACKED, DEAD
from sqlqueue.core.settings import ACKED as FROM_ACKS
from sqlqueue.database import retries
from sqlqueue.database.log import Log
from sqlqueue.database.sizes import delete_all
from sqlqueue.models import AckedMark, ConsumerGroup, Message, Receipt, Topic, dead_letter_topic

# Whether retention has released a message (parameter: the topic's retention in microseconds), or a purge up to an
# offset.
OLD = "created_at <= {earlier}"
PURGED = '"offset" <= %s'
MARKS = 100
# Index: (topic, partition, priority, offset_acked); at most MARKS rows and a few.
READ = """
    SELECT offset_acked, marked_at <= {earlier}, marked_at <= {earlier} FROM sqlqueue_acked_mark
    WHERE topic = %s AND "partition" = %s AND priority = %s ORDER BY offset_acked
"""


class Rule(NamedTuple):
    """The SQL condition for a released message, and its parameters."""

    sql: str
    values: tuple[int, ...]


ANY = Rule("(1 = 1)", ())


def released(topic: Topic) -> Rule | None:
    """Return the condition under which a topic's messages are released; None if it keeps them for ever."""
    old = () if topic.retention is None else (round(topic.retention * 1_000_000),)
    purged = (topic.purged_to,) if topic.purged_to else ()
    sql = " OR ".join([OLD] * len(old) + [PURGED] * len(purged))
    return Rule(f"({sql})", (*old, *purged)) if sql else None


def applies(topic: Topic) -> bool:
    """Tell whether a topic's retention counts from the acks."""
    return topic.retention is not None and settings.topic(topic.name).retention_from == FROM_ACKS


def released_to(log: Log, topic: str, partition: int, priority: int, acked: int, retention: float) -> int:
    """Return up to which offset every group had settled a stream `retention` seconds ago, 0 for unknown, and mark that
    now it is `acked`. In the transaction of a collection, which has locked the topic.

    Marks above that offset are forgotten: watermarks have been lowered by what does not call forget_above.
    """
    if retention <= 0:
        return acked
    stream = {"topic": topic, "partition": partition, "priority": priority}
    ages = round(retention * 1_000_000), round(retention / MARKS * 1_000_000)
    found = log.execute(READ, (*ages, topic, partition, priority)).fetchall()
    marks = [row for row in found if row[0] <= acked]
    old = [offset for offset, old_enough, _ in marks if old_enough]
    rows = AckedMark.objects.using(log.alias).filter(**stream)
    if len(marks) < len(found):
        rows.filter(offset_acked__gt=acked).delete()
    if len(old) > 1:
        rows.filter(offset_acked__lt=old[-1]).delete()
    last, _, apart = marks[-1] if marks else (0, True, True)
    if acked > last and apart:
        AckedMark.objects.using(log.alias).create(**stream, offset_acked=acked)
    return old[-1] if old else 0


def forget_above(log: Log, topic: str, offset: int) -> None:
    """Forget, in a transaction that has locked the topic, what was marked above an offset: a group will read it again,
    or for the first time. Whatever the settings of this process are: they may not name the topic."""
    AckedMark.objects.using(log.alias).filter(topic=topic, offset_acked__gt=offset).delete()


CHUNK = 500
MOST_RECEIPTS = 10  # of a message and a group that are looked at, on average
# Values that the log has, and those that come with them. Index: the primary key.
KEEP = """
    INSERT INTO sqlqueue_collected_message (message_offset, topic, "partition", priority, partition_key, message_id,
    payload, headers, body, created_at, published_at, due_at, target_group, outcomes, collected_at, kept_until)
    SELECT "offset", topic, "partition", priority, partition_key, message_id, payload, headers, body, created_at,
    published_at, due_at, target_group, {outcomes}, {now}, {later} FROM sqlqueue_message WHERE "offset" IN ({offsets})
"""


def keep(log: Log, topic: str, offsets: Sequence[int], purged_to: int) -> None:
    """Copy messages that the current transaction collects, with their outcome in each group, if the topic's
    `keep_collected` says so; but not those that an operator has purged."""
    kept = settings.topic(topic).keep_collected
    offsets = [offset for offset in offsets if offset > purged_to]
    if kept is None:
        return
    for start in range(0, len(offsets), CHUNK):
        some = offsets[start : start + CHUNK]
        for text, alike in _outcomes(log, topic, some).items():
            marks = ", ".join(["%s"] * len(alike))
            statement = KEEP.replace("{offsets}", marks).replace("{outcomes}", log.dialect.json_value)
            log.execute(statement, (text, round(kept * 1_000_000), *alike))


def _outcomes(log: Log, topic: str, offsets: Sequence[int]) -> dict[str, list[int]]:
    """Return the offsets of messages by their outcome in each group, as JSON text: most have the same."""
    registered = ConsumerGroup.objects.using(log.alias).filter(topic=topic).order_by("consumer_group")
    starts = dict(registered.values_list("consumer_group", "start"))
    rows = Message.objects.using(log.alias).filter(offset__in=offsets)
    messages = list(rows.values_list("offset", "target_group", "partition_key"))
    found: dict[int, dict[str, dict[str, object]]] = {
        offset: {
            group: {"outcome": ACKED} for group, start in starts.items() if start < offset and target in ("", group)
        }
        for offset, target, _ in messages
    }
    copies = [
        (dead_letter_topic(topic), f"{group}:{offset}", key) for offset, _, key in messages for group in found[offset]
    ]
    dead = Message.objects.using(log.alias).of_ids(copies, "failed_group", "original_offset", "failure_count")
    for one in dead:
        if one.original_offset in found and one.failed_group in found[one.original_offset]:
            found[one.original_offset][one.failed_group] = {"outcome": DEAD, "attempts": one.failure_count}
    ends = (
        Receipt.objects.using(log.alias).filter(message_offset__in=offsets, outcome__in=(ACKED, DEAD)).order_by("-id")
    )
    values = ends.values_list("message_offset", "consumer_group", "outcome", "attempts")
    for offset, group, outcome, attempts in reversed(values[: MOST_RECEIPTS * CHUNK]):  # the last one counts
        if offset in found and group in found[offset]:
            found[offset][group] = {"outcome": outcome, "attempts": attempts}
    alike: dict[str, list[int]] = {}
    for offset, groups in found.items():
        alike.setdefault(json.dumps(groups, sort_keys=True), []).append(offset)
    return alike


# -- sweeps -----------------------------------------------------------------------------------------------------------


def lock_free(log: Log, values: Sequence[int], table: str, key: str) -> list[int]:
    """Lock rows by their unique keys, in the caller's transaction and without waiting; return those that are locked
    now."""
    free: list[int] = []
    for start in range(0, len(values), CHUNK):
        some = values[start : start + CHUNK]
        text = log.dialect.lock_free(table, key, len(some))
        free += [value for (value,) in log.execute(text, some).fetchall()]
    return free


BATCH = 1_000
# What has no use any more, the oldest first. Index: (expires_at); (updated_at); (kept_until).
EXPIRED_RESULTS = "SELECT id FROM sqlqueue_result WHERE expires_at <= {now} ORDER BY expires_at LIMIT %s"
LEFT_PROGRESS = "SELECT id FROM sqlqueue_progress WHERE updated_at <= {earlier} ORDER BY updated_at LIMIT %s"
KEPT_LONG_ENOUGH = "SELECT id FROM sqlqueue_collected_message WHERE kept_until <= {now} ORDER BY kept_until LIMIT %s"
PROGRESS_LASTS = 30 * DAY  # seconds; its settle deletes it, unless its process was killed before
MOST_BATCHES = 100  # of receipts, results or progress in one collection
OLDEST_RECEIPTS = "SELECT id, finished_at <= {earlier} FROM sqlqueue_receipt ORDER BY id LIMIT %s"  # the primary key


def sweep_results(log: Log) -> int:
    """Delete results that have expired; return how many."""
    return _collect_old(log, "sqlqueue_result", EXPIRED_RESULTS)


def sweep_others(log: Log) -> None:
    """Delete collected messages that are kept no longer, and progress whose handler was killed."""
    _collect_old(log, "sqlqueue_collected_message", KEPT_LONG_ENOUGH)
    _collect_old(log, "sqlqueue_progress", LEFT_PROGRESS, round(PROGRESS_LASTS * 1_000_000))


def _collect_old(log: Log, table: str, oldest: str, *values: int) -> int:
    """Delete, in bounded batches, the rows that a statement names; return how many. Rows that another transaction has
    locked stay: a settle may be storing a result anew."""
    total = 0
    for _ in range(MOST_BATCHES):
        found = [id for (id,) in log.execute(oldest, (*values, BATCH)).fetchall()]
        deleted = retries.run(log, _delete_old, log, table, oldest, values, found) if found else 0
        total += deleted
        if deleted < BATCH:
            break
    return total


def _delete_old(log: Log, table: str, oldest: str, values: Sequence[int], found: Sequence[int]) -> int:
    """Delete those of the found rows that are still old, once they are locked; return how many."""
    total = 0
    for start in range(0, len(found), CHUNK):
        free = lock_free(log, found[start : start + CHUNK], table, "id")
        if free:
            still = oldest.replace("WHERE", f"WHERE id IN ({', '.join(['%s'] * len(free))}) AND")
            old = [id for (id,) in log.execute(still, (*free, *values, CHUNK)).fetchall()]
            delete_all(log, table, "id", old)
            total += len(old)
    return total


def sweep_receipts(log: Log) -> int:
    """Delete receipts whose retention is over; return how many."""
    age = round(settings.RECEIPT_RETENTION * 1_000_000)
    total = 0
    for _ in range(MOST_BATCHES):
        released = [id for id, old_enough in log.execute(OLDEST_RECEIPTS, (age, BATCH)).fetchall() if old_enough]
        if released:
            retries.run(log, delete_all, log, "sqlqueue_receipt", "id", released)
        total += len(released)
        if len(released) < BATCH:
            break
    return total
