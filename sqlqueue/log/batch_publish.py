"""Publishing members of a batch: a message, and in the same transaction the count of what was added."""

from __future__ import annotations

import uuid

from sqlqueue.core.new_message import NewMessage
from sqlqueue.log import batch_parts
from sqlqueue.log.publish import publish_message
from sqlqueue.log.published import CREATED, Published


def new_id() -> str:
    """Return an id for a batch."""
    return uuid.uuid4().hex


def publish_member(alias: str, batch: str, topic: str, message: NewMessage) -> Published:
    """Publish a message as a member of a batch, in the caller's transaction. One that is ignored, because its id is
    taken, becomes no member."""
    message.batch = batch
    published = publish_message(topic, message)
    if published.status == CREATED:
        batch_parts.add(alias, batch, topic, {message.group: 1})
    return published
