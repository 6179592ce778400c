"""Publishing to topics of several shards: many messages at once, and what another shard relays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from django.db import Error, transaction

from sqlqueue.conf import settings
from sqlqueue.core.membership import batch_of
from sqlqueue.core.new_message import NewMessage
from sqlqueue.database import retries
from sqlqueue.database.retries import ErrorKind
from sqlqueue.database.validation import TopicInfo, refuse_dead_letters
from sqlqueue.exceptions import InvalidMessage, PartlyPublished
from sqlqueue.log import batch_parts
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
    _relay(to, [offer])
    return Published(None, offer.message.row.id, CREATED, settings.shard_name(to.alias))


def _relay(to: Destination, offers: Sequence[Offer]) -> None:
    """Let messages wait for their way to their shard; members of batches are counted here."""
    shard = settings.shard_name(to.alias)
    relays.add(to.relay, shard, offers)
    batch_parts.change(to.relay, batch_parts.of_rows((offer.message.row for offer in offers), shard))


def only_destination(topic: str, relay: bool) -> Destination | None:
    """Return where all messages of a topic go, if it is on one shard; else None."""
    return chooser(topic, relay)("", None) if len(placement(topic).shards) == 1 else None


def stream_alias(topic: str) -> str:
    """Return the alias in whose transaction an iterator of a topic's messages is published. Raises InvalidMessage if
    the topic is on several shards."""
    if not settings.sharded:
        return settings.DATABASE
    to = only_destination(topic, relay=True)
    if to is None:
        raise _no_iterator(topic)
    return to.relay or to.alias


def _no_iterator(topic: str) -> InvalidMessage:
    return InvalidMessage(
        f"topic {topic!r} is on several shards, so an iterator cannot be published in one transaction: give lists"
    )


def destinations(topic: str, messages: Iterable[NewMessage]) -> set[Destination]:
    """Return where messages of a topic may go, in a transaction, which relays them, or without one: of one without key
    and id, which goes to any shard then, all of them."""
    choose, found = chooser(topic, relay=True), set[Destination]()
    for key, id in {(message.key, message.id) for message in messages}:
        if key or id or open_shards():
            found.add(choose(key, id))
        else:
            found.update(Destination(settings.shards[shard]) for shard in placement(topic).shards)
    return found


def publish_many(
    topic: str, messages: Iterable[NewMessage | Any], traced: Callable[[Any], Any] | None, relay: bool
) -> PublishedMany:
    """Publish many messages, each on its shard."""
    if isinstance(messages, Iterator):
        raise _no_iterator(topic)
    new = [message if isinstance(message, NewMessage) else NewMessage(message) for message in messages]
    choose = chooser(topic, relay)
    destinations = [choose(message.key, message.id) for message in new]
    if relay and len(set(destinations)) > 1 and not open_shards():
        with transaction.atomic(using=destinations[0].alias):
            return publish_many(topic, new, traced, relay)
    headers = [message.headers if traced is None else traced(message.headers) for message in new]
    call = _Call(topic, new, headers, destinations)
    call.check()  # all of them, before one is published
    return call.run()


def _offer(topic: str, message: NewMessage, headers: Any, to: Destination) -> Offer:
    alias = to.relay or to.alias
    info = fixed(topic) if to.relay else to_publish(alias, topic)
    return OfferMaker(alias, info).offer(message, headers)


class _Call:
    """One call of publish_many: its messages by where they go. A shard that does not answer fails alone."""

    def __init__(
        self, topic: str, messages: Sequence[NewMessage], headers: Sequence[Any], destinations: Sequence[Destination]
    ):
        self.topic, self.messages, self.headers = topic, messages, headers
        self.parts: dict[Destination, list[int]] = {}
        for index, to in enumerate(destinations):
            self.parts.setdefault(to, []).append(index)
        self.offers: dict[int, Offer] = {}
        self.statuses: list[Status] = [CREATED] * len(messages)
        self.ids = [""] * len(messages)
        self.failed: dict[Destination, Error] = {}
        self.unpublished: list[int] = []

    def check(self) -> None:
        """Check and encode all messages. Raises InvalidMessage."""
        self._each(self._encode)

    def run(self) -> PublishedMany:
        """Publish them."""
        self._each(self._add)
        if self.failed:
            if len(self.unpublished) == len(self.messages):
                raise next(iter(self.failed.values()))
            failed = {settings.shard_name(to.alias): error for to, error in self.failed.items()}
            raise PartlyPublished(self.topic, failed, sorted(self.unpublished))
        counts = (self.statuses.count(status) for status in (CREATED, UPDATED, IGNORED))
        return PublishedMany(self.ids, self.statuses, *counts)

    def _each(self, do: Callable[[Destination, Sequence[int]], None]) -> None:
        for to, indexes in list(self.parts.items()):
            try:
                if to in self.failed:
                    raise self.failed[to]
                do(to, indexes)
            except Error as error:
                if open_shards() or len(self.messages) == len(indexes):
                    raise
                if retries.classify(error) is ErrorKind.GONE:
                    retries.drop_connection(to.alias)
                self.failed[to] = error
                self.unpublished += indexes
                del self.parts[to]

    def _encode(self, to: Destination, indexes: Sequence[int]) -> None:
        for index in indexes:
            self.offers[index] = _offer(self.topic, self.messages[index], self.headers[index], to)

    def _add(self, to: Destination, indexes: Sequence[int]) -> None:
        offers = [self.offers[index] for index in indexes]
        if to.relay:
            _relay(to, offers)
            statuses: list[Status] = [CREATED] * len(offers)
            ids = [offer.message.row.id for offer in offers]
        else:
            statuses, ids = self._add_here(to.alias, offers)
            added = [offer for offer, status in zip(offers, statuses) if status != IGNORED]
            if entered := notify_of(to.alias, added):
                shard = settings.shard_name(to.alias)
                announce(message_published, publish_many, topic=self.topic, count=entered, shard=shard)
        for index, status, id in zip(indexes, statuses, ids):
            self.statuses[index], self.ids[index] = status, id

    def _add_here(self, alias: str, offers: Sequence[Offer]) -> tuple[list[Status], list[str]]:
        """Add messages to their shard; members of batches with their count, in one transaction."""
        if any(batch_of(offer.message.row.headers) for offer in offers):
            return retries.run(alias, _add_members, alias, offers)
        return add_offers(alias, offers)


def _add_members(alias: str, offers: Sequence[Offer]) -> tuple[list[Status], list[str]]:
    statuses, ids = add_offers(alias, offers)
    created = (offer.message.row for offer, status in zip(offers, statuses) if status == CREATED)
    batch_parts.change(alias, batch_parts.of_rows(created))
    return statuses, ids
