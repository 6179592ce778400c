"""Work items as copies of messages, written in the transaction that settles those, and the notices of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlqueue.conf import settings
from sqlqueue.contrib.people.exceptions import HandOver
from sqlqueue.contrib.people.models import DONE, OPEN, WorkItem
from sqlqueue.contrib.people.topics import topic_options
from sqlqueue.core.databases import numbered
from sqlqueue.core.effects import EffectWrite
from sqlqueue.core.lease import HeldLease
from sqlqueue.core.outcomes import told
from sqlqueue.database.dialects.base import marks_of
from sqlqueue.database.limits import check_result
from sqlqueue.database.log import Log, home_log
from sqlqueue.exceptions import InvalidMessage
from sqlqueue.log.encoding import encode
from sqlqueue.models import ScheduledMessage

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


def handed_over(error: HandOver) -> HandedOver:
    """Return what a handler that has raised this says. Raises InvalidMessage if its form cannot be stored, or would not
    come back equal."""
    if error.form is None:
        return HandedOver(told(error), None)
    try:
        text = encode(error.form, "form")
        check_result(home_log(), text, settings.MAX_PAYLOAD_BYTES)
    except InvalidMessage as refused:
        raise InvalidMessage(f"HandOver: {refused}") from refused
    return HandedOver(told(error), text)


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
