"""Collected messages: of a topic with `keep_collected`, collection moves what it deletes to a table of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sqlqueue.conf import settings
from sqlqueue.core.outcomes import ACKED, DEAD
from sqlqueue.database.log import Log
from sqlqueue.models import ConsumerGroup, Message, Receipt, dead_letter_topic

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
