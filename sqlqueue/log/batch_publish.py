"""Publishing members of a batch: messages, and in the same transaction the count of what was added.

A batch and its members are on DATABASE: what belongs on another log is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sqlqueue.conf import settings
from sqlqueue.core.new_message import NewMessage
from sqlqueue.database import retries
from sqlqueue.database.log import home_log
from sqlqueue.exceptions import InvalidMessage
from sqlqueue.log import batch_parts
from sqlqueue.log.placement import destination
from sqlqueue.log.publish import publish_many, publish_message
from sqlqueue.log.published import CREATED, Published, PublishedMany


def publish(batch: str, topic: str, message: NewMessage) -> Published:
    """Publish a member, in the caller's transaction or in one of its own. One that is ignored, because its id is taken,
    becomes no member. Raises InvalidMessage for one that belongs on another log than DATABASE."""
    _check(topic, message)
    return retries.run(home_log(), publish_member, batch, topic, message)


def publish_some(batch: str, topic: str, messages: Sequence[NewMessage]) -> PublishedMany:
    """Publish many members, all or none of them, in the same way."""
    for message in messages:
        message.batch = batch
        _check(topic, message)
    return retries.run(home_log(), _publish_some, batch, topic, messages)


def _publish_some(batch: str, topic: str, messages: Sequence[NewMessage]) -> PublishedMany:
    published = publish_many(topic, messages)
    statuses = zip(messages, published.statuses or ())
    counts = Counter(one.group or "" for one, status in statuses if status == CREATED)
    batch_parts.add(home_log(), batch, topic, counts)
    return published


def publish_member(batch: str, topic: str, message: NewMessage) -> Published:
    """Publish a member in the transaction that is open on DATABASE."""
    message.batch = batch
    published = publish_message(topic, message, log=home_log())
    if published.status == CREATED:
        batch_parts.add(home_log(), batch, topic, {message.group or "": 1})
    return published


def _check(topic: str, message: NewMessage) -> None:
    if settings.several and (log := destination(topic, message.key, message.id, relay=True).log) != home_log():
        what = f"key {message.key!r}" if message.key else "this message"
        raise InvalidMessage(
            f"{what} of topic {topic!r} belongs on {log.alias!r}, and a batch has its members on DATABASE, "
            f"{home_log().alias!r}: let the topic be there alone, or publish it without the batch"
        )
