"""Publishing members of a batch: messages, and in the same transaction a row for each group that settles them.

A batch and its members are on DATABASE: what belongs on another log is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlqueue.conf import settings
from sqlqueue.contrib.batches import members
from sqlqueue.contrib.batches.members import Member, Numbers
from sqlqueue.core.keys import ID_LENGTH, KEY_LENGTH, checked_text, new_id, partition_of
from sqlqueue.core.new_message import NewMessage
from sqlqueue.database.log import home_log
from sqlqueue.exceptions import InvalidMessage
from sqlqueue.log.placement import destination
from sqlqueue.log.publish import publish_many, publish_message
from sqlqueue.log.published_topic import CREATED, Published, PublishedMany
from sqlqueue.log.topics import published_topic


class Block:
    """Publishes members of a batch in one transaction, and reads the groups of each topic once."""

    def __init__(self, batch: str):
        self._batch, self._numbers = batch, Numbers()
        self._groups: dict[str, list[str]] = {}

    def publish(self, topic: str, message: NewMessage) -> Published:
        """Publish a member, in the transaction that is open on DATABASE. One that is ignored, because its id is taken,
        becomes none."""
        (member,) = self._named(topic, [message])
        published = publish_message(topic, message, log=home_log())
        if published.status == CREATED:
            self._add(topic, [(member, message.group)])
        return published

    def publish_many(self, topic: str, messages: Sequence[NewMessage]) -> PublishedMany:
        """Publish many members, all or none of them, in the same way."""
        named = self._named(topic, messages)
        published = publish_many(topic, messages)
        found = zip(named, messages, published.statuses or ())
        self._add(topic, [(member, one.group) for member, one, status in found if status == CREATED])
        return published

    def _named(self, topic: str, messages: Sequence[NewMessage]) -> list[Member]:
        """Make messages members. Those of one partition, which one process settles, share parts."""
        for message in messages:
            _check(topic, message)
        partitions = published_topic(home_log(), topic).info.partitions
        if topic not in self._groups and not all(message.group for message in messages):
            self._groups[topic] = members.groups_of(home_log(), topic)
        named = []
        for message in messages:
            if message.id is None:
                message.id, message.fresh = new_id(), True
            text = checked_text(message.key, "key", KEY_LENGTH) or checked_text(message.id, "id", ID_LENGTH)
            settled = message.group or self._groups[topic]
            origin = (topic, partition_of(text, partitions), message.group) if settled else None
            member = Member(self._batch, self._numbers.next(origin))
            message.own = member.headers
            named.append(member)
        return named

    def _add(self, topic: str, added: Sequence[tuple[Member, str]]) -> None:
        members.add(home_log(), topic, self._groups.get(topic, ()), added)


def _check(topic: str, message: NewMessage) -> None:
    if settings.several and (log := destination(topic, message.key, message.id, relay=True).log) != home_log():
        what = f"key {message.key!r}" if message.key else "this message"
        raise InvalidMessage(
            f"{what} of topic {topic!r} belongs on {log.alias!r}, and a batch has its members on DATABASE, "
            f"{home_log().alias!r}: let the topic be there alone, or publish it without the batch"
        )
