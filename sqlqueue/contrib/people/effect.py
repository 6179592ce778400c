"""People's work as an effect: HandOver makes a work item of a message, a copy that is written in the transaction that
settles it."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlqueue.conf import settings
from sqlqueue.contrib.people import survey
from sqlqueue.contrib.people.exceptions import HandOver
from sqlqueue.contrib.people.models import DONE, OPEN, UNFINISHED, WorkItem
from sqlqueue.contrib.people.topics import retention, topic_options
from sqlqueue.core.effects import Count, Effect, EffectWrite
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX, numbered
from sqlqueue.core.logfmt import logfmt
from sqlqueue.core.outcomes import told
from sqlqueue.core.partition.ref import HeldLease
from sqlqueue.database import retries
from sqlqueue.database.dialects.base import marks_of
from sqlqueue.database.limits import check_result
from sqlqueue.database.log import Log, home_log
from sqlqueue.exceptions import InvalidMessage
from sqlqueue.log.encoding import encode
from sqlqueue.models import ScheduledMessage

logger = logging.getLogger("sqlqueue")

AT_ONCE = 100  # items that one transaction of a sweep, or of a drop, deletes, with all events of each
MOST_AT_ONCE = 5_000  # items of one sweep

# Those that are done have a time, and keep it; the oldest first. Index: (finished_at).
FINISHED = "SELECT id FROM sqlqueue_work_item WHERE finished_at <= {earlier} ORDER BY finished_at LIMIT %s"
# Index: the unique (message_offset, consumer_group, fencing_token).
PRESENT = """
    SELECT message_offset, state, fencing_token FROM sqlqueue_work_item WHERE message_offset IN ({marks})
    AND consumer_group = %s
"""
# Index: the primary key of the log. What is large stays in the server.
COPY = """
    INSERT INTO sqlqueue_work_item (topic, partition_key, message_id, message_offset, consumer_group, fencing_token,
    attempts, payload, headers, body, published_at, reason, form, due_at) SELECT m.topic, m.partition_key, m.message_id,
    m."offset", %s, %s, %s, m.payload, m.headers, m.body, COALESCE(m.published_at, m.created_at), %s, %s, {due}
    FROM sqlqueue_message m WHERE m."offset" IN ({marks})
"""
NEW = "handed over"  # the event of a notice
CHUNK = 500


class HandedOver(NamedTuple):
    """What a handler says to the people who go on with its message. form: JSON text, None for no values."""

    reason: str
    form: str | None


class WorkItems(Effect):
    """Writes, counts and deletes work items."""

    exception = HandOver
    figures = survey.FIGURES

    def decide(self, error: HandOver) -> HandedOver:
        """Return what the handler says to the people who go on with the message. Raises InvalidMessage if its form
        cannot be stored, or would not come back equal."""
        if error.form is None:
            return HandedOver(told(error), None)
        try:
            text = encode(error.form, "form")
            check_result(home_log(), text, settings.MAX_PAYLOAD_BYTES)
        except InvalidMessage as refused:
            raise InvalidMessage(f"HandOver: {refused}") from refused
        return HandedOver(told(error), text)

    def settle(self, log: Log, writes: Sequence[EffectWrite]) -> None:
        """Copy the messages to the work items."""
        for lease in dict.fromkeys(each.lease for each in writes):
            write(log, lease, [each for each in writes if each.lease is lease])

    def sweep(self, log: Log) -> bool:
        """Delete items that were done SQLQUEUE_PEOPLE["RETENTION"] ago, with their audit trail."""
        return collect(log) >= MOST_AT_ONCE

    def withdrawn(self, log: Log, topic: str, group: str, messages: Iterable[Any] | None) -> int:
        """Delete some of what people have not done of a topic that is dropped, and of its dead letters. Index: (state,
        topic)."""
        names = [topic, topic + DEAD_LETTER_SUFFIX]
        rows = WorkItem.objects.using(log.alias).filter(state__in=UNFINISHED, topic__in=names)
        some = list(rows.values_list("pk", flat=True)[:AT_ONCE])
        WorkItem.objects.using(log.alias).filter(pk__in=some).only("pk").delete()  # with their events
        return len(some)

    def survey(self, log: Log, topics: Sequence[str]) -> Mapping[str, Mapping[str, Count]]:
        """Count what people have not done, and what of that is overdue."""
        return survey.open_work(log, topics)


WORK_ITEMS = WorkItems()


def collect(log: Log) -> int:
    """Delete items that were done SQLQUEUE_PEOPLE["RETENTION"] ago, about MOST_AT_ONCE at most; return how many. An
    item that another transaction has locked stays: a comment may be on its way. Raises ConfigurationError if that
    setting is wrong."""
    kept = retention()
    total = 0
    while kept is not None and total < MOST_AT_ONCE:
        ids = [id for (id,) in log.execute(FINISHED, (round(kept * 1_000_000), AT_ONCE)).fetchall()]
        deleted = retries.run(log, _delete, log, ids) if ids else 0
        total += deleted
        if deleted < AT_ONCE:
            break
    if total:
        logger.info(logfmt("work_items_collected", count=total))
    return total


def _delete(log: Log, ids: Sequence[int]) -> int:
    rows = WorkItem.objects.using(log.alias).filter(state=DONE)
    free = list(rows.filter(pk__in=ids).select_for_update(skip_locked=True).values_list("pk", flat=True))
    rows.filter(pk__in=free).only("pk").delete()  # with their events
    return len(free)


def write(log: Log, lease: HeldLease, items: Sequence[EffectWrite]) -> None:
    """Copy messages of a partition to the work items, in the current transaction, which holds the fence.

    It may be run again after an unknown outcome. A message of which the group has an open item gets no second one: the
    group was reset, and people have that one still. Two statements for what was handed over with the same words.
    """
    for start in range(0, len(items), CHUNK):
        alike: dict[tuple[int, HandedOver], list[int]] = defaultdict(list)
        some = items[start : start + CHUNK]
        present = _present(log, lease, [item.offset for item in some])
        for item in some:
            if item.offset not in present:
                alike[item.attempts, item.value].append(item.offset)
        for (attempts, said), offsets in alike.items():
            _copy(log, lease, attempts, said, offsets)
        if (notices := topic_options(lease.ref.topic).notices) is not None:
            _schedule_notices(log, lease, notices, [offset for offsets in alike.values() for offset in offsets])


def _present(log: Log, lease: HeldLease, offsets: Sequence[int]) -> set[int]:
    text = PRESENT.replace("{marks}", marks_of(len(offsets)))
    found = log.execute(text, (*offsets, lease.ref.group)).fetchall()
    return {offset for offset, state, token in found if state != DONE or token == lease.token}


def _copy(log: Log, lease: HeldLease, attempts: int, said: HandedOver, offsets: Sequence[int]) -> None:
    within = topic_options(lease.ref.topic).within
    text = COPY.replace("{marks}", marks_of(len(offsets))).replace("{due}", "NULL" if within is None else "{later}")
    due = () if within is None else (round(within * 1_000_000),)
    values = (lease.ref.group, lease.token, attempts, said.reason or None, said.form, *due, *offsets)
    log.execute(text, values)


def _schedule_notices(log: Log, lease: HeldLease, topic: str, offsets: Sequence[int]) -> None:
    """Let the scheduler publish a notice of each new item. It checks them against the topic, which may refuse them:
    that must not fail a settle."""
    new = WorkItem.objects.using(log.alias).filter(
        message_offset__in=offsets, consumer_group=lease.ref.group, state=OPEN
    )
    rows = [
        ScheduledMessage(
            topic=topic,
            partition_key=item.partition_key,
            # Not that of the decision, which may go to the same topic.
            message_id=f"work-item-{numbered(item.pk, log.label)}-0",
            payload=notice(item, NEW),
        )
        for item in new.defer("payload", "headers", "body", "form")
    ]
    ScheduledMessage.objects.using(log.alias).bulk_create(rows)


def notice(item: WorkItem, event: str, by: str = "", assignee: str = "", comment: str = "") -> dict[str, Any]:
    """Return the payload of a notice: what happened to an item, and whom it concerns."""
    return {
        "event": event,
        "work_item": item.pk,
        "topic": item.topic,
        "key": item.partition_key,
        "message_id": item.message_id,
        "reason": item.reason or "",
        "by": by,
        "assignee": assignee,
        "teams": list(topic_options(item.topic).teams),
        "comment": comment,
    }
