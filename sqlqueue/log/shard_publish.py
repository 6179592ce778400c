"""Publishing to topics of several shards: many messages at once, and what another shard relays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from django.db import Error, transaction

from sqlqueue.conf import settings
from sqlqueue.core.new_message import NewMessage
from sqlqueue.database import retries
from sqlqueue.database.retries import ErrorKind
from sqlqueue.database.validation import TopicInfo, refuse_dead_letters
from sqlqueue.exceptions import InvalidMessage, PartlyPublished
from sqlqueue.log import relay as relays
from sqlqueue.log.adding import add_offers, notify_of
from sqlqueue.log.conflicts import Offer
from sqlqueue.log.offers import OfferMaker
from sqlqueue.log.placement import Destination, chooser, open_shards, placement
from sqlqueue.log.published import CREATED, IGNORED, UPDATED, Published, PublishedMany, Status
from sqlqueue.log.topics import to_publish
from sqlqueue.signals import announce, message_published


def fixed(topic: str) -> TopicInfo:
    """Return a topic's partitions and priorities, without its shard. Raises ConfigurationError as publish does."""
    refuse_dead_letters(topic)
    placed = placement(topic)
    return TopicInfo(topic, placed.partitions, placed.priorities)


def relay_one(topic: str, message: NewMessage, headers: Any, to: Destination) -> Published:
    """Let a message wait in the caller's transaction for its way to its shard."""
    offer = _offer(topic, message, headers, to)
    relays.add(to.relay, settings.shard_name(to.alias), [offer])
    return Published(None, offer.message.row.id, CREATED, settings.shard_name(to.alias))


def only_destination(topic: str, relay: bool) -> Destination | None:
    """Return where all messages of a topic go, if it is on one shard; else None."""
    return chooser(topic, relay)("", None) if len(placement(topic).shards) == 1 else None


def publish_many(
    topic: str, messages: Iterable[NewMessage | Any], traced: Callable[[Any], Any] | None, relay: bool
) -> PublishedMany:
    """Publish many messages, each on its shard."""
    if isinstance(messages, Iterator):
        raise InvalidMessage(
            f"topic {topic!r} is on several shards, so an iterator cannot be published in one transaction: give lists"
        )
    new = [message if isinstance(message, NewMessage) else NewMessage(message) for message in messages]
    choose = chooser(topic, relay)
    destinations = [choose(message.key, message.id) for message in new]
    if relay and len(set(destinations)) > 1 and not open_shards():
        with transaction.atomic(using=destinations[0].alias):
            return publish_many(topic, new, traced, relay)
    headers = [message.headers if traced is None else traced(message.headers) for message in new]
    call = _Call(topic, destinations)
    call.check(new, headers)  # all of them, before one is published
    return call.run()


def _offer(topic: str, message: NewMessage, headers: Any, to: Destination) -> Offer:
    alias = to.relay or to.alias
    info = fixed(topic) if to.relay else to_publish(alias, topic)
    return OfferMaker(alias, info).offer(message, headers)


class _Call:
    """One call of publish_many: its messages by where they go. A shard that does not answer fails alone."""

    def __init__(self, topic: str, destinations: Sequence[Destination]):
        self.topic = topic
        self.parts: dict[Destination, list[int]] = {}
        for index, to in enumerate(destinations):
            self.parts.setdefault(to, []).append(index)
        self.offers: dict[int, Offer] = {}
        self.statuses: list[Status] = [CREATED] * len(destinations)
        self.ids = [""] * len(destinations)
        self.failed: dict[Destination, Error] = {}

    def check(self, messages: Sequence[NewMessage], headers: Sequence[Any]) -> None:
        """Check and encode all messages. Raises InvalidMessage."""
        self._each(lambda to, indexes: self._encode(to, indexes, messages, headers))

    def run(self) -> PublishedMany:
        """Publish them."""
        self._each(self._add)
        if self.failed:
            if len(self.failed) == len(self.parts):
                raise next(iter(self.failed.values()))
            unpublished = sorted(index for to in self.failed for index in self.parts[to])
            failed = {settings.shard_name(to.alias): error for to, error in self.failed.items()}
            raise PartlyPublished(self.topic, failed, unpublished)
        counts = (self.statuses.count(status) for status in (CREATED, UPDATED, IGNORED))
        return PublishedMany(self.ids, self.statuses, *counts)

    def _each(self, do: Callable[[Destination, Sequence[int]], None]) -> None:
        for to, indexes in self.parts.items():
            if to in self.failed:
                continue
            try:
                do(to, indexes)
            except Error as error:
                if open_shards() or len(self.parts) == 1:
                    raise
                if retries.classify(error) is ErrorKind.GONE:
                    retries.drop_connection(to.alias)
                self.failed[to] = error

    def _encode(
        self, to: Destination, indexes: Sequence[int], messages: Sequence[NewMessage], headers: Sequence[Any]
    ) -> None:
        for index in indexes:
            self.offers[index] = _offer(self.topic, messages[index], headers[index], to)

    def _add(self, to: Destination, indexes: Sequence[int]) -> None:
        offers = [self.offers[index] for index in indexes]
        if to.relay:
            relays.add(to.relay, settings.shard_name(to.alias), offers)
            statuses: list[Status] = [CREATED] * len(offers)
            ids = [offer.message.row.id for offer in offers]
        else:
            statuses, ids = add_offers(to.alias, offers)
            added = [offer for offer, status in zip(offers, statuses) if status != IGNORED]
            if entered := notify_of(to.alias, added):
                shard = settings.shard_name(to.alias)
                announce(message_published, publish_many, topic=self.topic, count=entered, shard=shard)
        for index, status, id in zip(indexes, statuses, ids):
            self.statuses[index], self.ids[index] = status, id
