"""Publishing members of a batch: messages, and in the same transaction the count of what was added.

A batch's row is on DATABASE's shard. Its members are on the shards of their keys; each is counted on the shard of the
transaction that publishes it. So what reads how the batch stands has to know on which shards there are counts: before
there are any on another one, that is stored on a shard which is known already (`batch_parts.name_shard`).
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Sequence

from django.db import connections

from sqlqueue.conf import settings
from sqlqueue.core.new_message import NewMessage
from sqlqueue.database import retries
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log import batch_parts, shard_publish
from sqlqueue.log.placement import Destination, destination, open_shards
from sqlqueue.log.publish import publish_many, publish_message
from sqlqueue.log.published import CREATED, Published, PublishedMany


def new_id() -> str:
    """Return an id for a batch."""
    return uuid.uuid4().hex


def require_own_transaction(what: str) -> None:
    """Raise ConfigurationError if a transaction is open on another shard than DATABASE's, where batches are."""
    others = [name for name in open_shards() if settings.shards[name] != settings.home] if settings.sharded else []
    if others:
        raise ConfigurationError(
            f"a batch is on DATABASE's shard, {settings.shard_name(settings.home)!r}, and a transaction is open on "
            f"{others[0]!r}: they would not commit together. {what}"
        )


class Adding:
    """Adds members to one batch. known: the alias of a shard, beside DATABASE's, of which it is known that counts of
    the batch are there."""

    def __init__(self, batch: str, known: str):
        self.batch = batch
        self._known = known
        self._named: set[str] = set()
        self.elsewhere = False  # whether members may be on other shards than DATABASE's

    def publish(self, topic: str, message: NewMessage) -> Published:
        """Publish a member: in a caller's transaction, which relays those of other shards, or in one of its own. One
        that is ignored, because its id is taken, becomes no member."""
        message.batch = self.batch
        if not settings.sharded:
            to = Destination(settings.DATABASE)
        else:
            to = destination(topic, message.key, message.id, relay=True)
            self._name(topic, [to])
        return retries.run(to.relay or to.alias, publish_member, self.batch, topic, message, to)

    def publish_at(self, topic: str, message: NewMessage, alias: str) -> Published:
        """Publish a member in the transaction that is open on the shard to which it goes."""
        to = Destination(alias)
        if settings.sharded:
            self._name(topic, [to])
        return publish_member(self.batch, topic, message, to)

    def publish_many(self, topic: str, messages: Sequence[NewMessage]) -> PublishedMany:
        """Publish many members, in the same way. Outside of a transaction all or none of those of each shard."""
        for message in messages:
            message.batch = self.batch
        to = Destination(settings.DATABASE)
        if settings.sharded:
            placed = shard_publish.only_destination(topic, relay=True)
            self._name(topic, [placed] if placed else shard_publish.destinations(topic, messages))
            if placed is None:
                return publish_many(topic, messages, relay=bool(open_shards()))
            to = placed
        return retries.run(to.relay or to.alias, self._publish_there, topic, messages, to)

    def _publish_there(self, topic: str, messages: Sequence[NewMessage], to: Destination) -> PublishedMany:
        published = publish_many(topic, messages, relay=True)
        if not to.relay:  # what waits for its way is counted with it
            statuses = zip(messages, published.statuses or ())
            counts = Counter(one.group or "" for one, status in statuses if status == CREATED)
            batch_parts.add(to.alias, self.batch, topic, counts)
        return published

    def _name(self, topic: str, destinations: Iterable[Destination]) -> None:
        """Store which shards are about to have counts, as far as that may not be known."""
        found = set(destinations)
        self.elsewhere = self.elsewhere or found != {Destination(settings.home)}
        counting = {to.relay or to.alias for to in found}
        for alias in sorted(counting - {settings.home, self._known} - self._named):
            retries.run_statement(
                self._known, batch_parts.name_shard, self._known, self.batch, topic, settings.shard_name(alias)
            )
            if not connections[self._known].in_atomic_block:  # else it may be rolled back
                self._named.add(alias)


def publish_member(batch: str, topic: str, message: NewMessage, to: Destination) -> Published:
    """Publish a member in the transaction that is open on the shard where it is counted."""
    message.batch = batch
    if to.relay:
        return publish_message(topic, message, relay=True)
    published = publish_message(topic, message, alias=to.alias)
    if published.status == CREATED:
        batch_parts.add(to.alias, batch, topic, {message.group or "": 1})
    return published


def publish_step(alias: str, batch: str, topic: str, message: NewMessage) -> None:
    """Publish a member of a chain's step in the transaction that is open on DATABASE's shard."""
    to = destination(topic, message.key, message.id, relay=True) if settings.sharded else Destination(alias)
    publish_member(batch, topic, message, to)
