"""Republishes messages of the log for one group, as copies at the log's end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlqueue.core.keys import GROUP_LENGTH, checked_name, new_id
from sqlqueue.database import retries
from sqlqueue.database.gate import insert_many
from sqlqueue.database.insert_sql import LogRow, Stored
from sqlqueue.database.log import Log
from sqlqueue.database.scheduling import copy_scheduled, insert_scheduled
from sqlqueue.exceptions import InvalidMessage, seconds
from sqlqueue.log import withdrawing
from sqlqueue.log.notifier import notify_after_commit
from sqlqueue.log.placement import worked_on
from sqlqueue.log.topics import topic_info
from sqlqueue.models import Message

AT_ONCE = 500


def republish(
    topic: str,
    group: str,
    offsets: Iterable[int],
    *,
    priority: int | None = None,
    delay: float = 0.0,
    database: str = "",
) -> int:
    """Publish copies of a topic's messages for one group, in the order of their offsets; return how many.

    The messages in the log stay. A copy has that target group and a fresh id, and stands at the log's end. priority: of
    the copies (None: as before); delay: in so many seconds. Offsets that the log does not hold are left out. database:
    the one that they are on, if the topic is on several.

    A copy of a batch's member is that member again.

    Raises InvalidMessage for a priority that the topic does not have, and for an invalid delay.
    """
    wanted = sorted(set(offsets))
    (log,) = worked_on(topic, database, wanted)
    delay = seconds(delay)
    checked_name(group, "group", GROUP_LENGTH)
    if priority is not None:
        check_priority(log, topic, priority)
    done = 0
    for start in range(0, len(wanted), AT_ONCE):
        done += retries.run(log, copy, log, topic, group, wanted[start : start + AT_ONCE], priority, delay)
    return done


def check_priority(log: Log, topic: str, priority: int) -> None:
    """Raise InvalidMessage for a priority that the topic does not have."""
    priorities = topic_info(log, topic).priorities
    if not 0 <= priority < priorities:
        raise InvalidMessage(f"priority {priority} is not one of topic {topic!r}, which has {priorities}")


def copy(log: Log, topic: str, group: str, offsets: Sequence[int], priority: int | None, delay: float) -> int:
    """Publish copies for a group in the caller's transaction, which must be short; return how many."""
    messages = Message.objects.using(log.alias).filter(offset__in=offsets, topic=topic).order_by("offset").as_stored()
    rows = [
        LogRow(
            topic,
            message.partition,
            message.priority if priority is None else priority,
            message.partition_key,
            new_id(),
            payload,
            headers,
            group,
            scheduled_for=delay or None,
        )
        for message in messages
        for payload, headers in (message.to_copy(),)
    ]
    if delay > 0:
        for row in rows:
            if isinstance(row.payload, Stored):
                copy_scheduled(log, row)
            else:
                insert_scheduled(log, [row])
    elif rows:
        insert_many(log, rows)
        notify_after_commit(log)
    withdrawing.give_back(log, topic, group, offsets)
    return len(rows)
