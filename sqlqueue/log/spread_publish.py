"""Publishing to topics on several databases: many messages at once, and what another database relays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from django.db import Error

from sqlqueue.conf import settings
from sqlqueue.core.new_message import NewMessage
from sqlqueue.database import retries
from sqlqueue.database.retries import ErrorKind
from sqlqueue.exceptions import InvalidMessage, PartlyPublished
from sqlqueue.log import relay as relays
from sqlqueue.log.adding import add_offers, notify_of
from sqlqueue.log.conflicts import Offer
from sqlqueue.log.offers import OfferMaker
from sqlqueue.log.placement import Destination, chooser, open_logs
from sqlqueue.log.published import CREATED, IGNORED, UPDATED, Published, PublishedMany, Status
from sqlqueue.log.topics import planned, to_publish
from sqlqueue.signals import announce, message_published


def relay_one(topic: str, message: NewMessage, headers: Any, to: Destination) -> Published:
    """Let a message wait in the caller's transaction for its way to its database."""
    assert to.relay is not None
    offer = _offer(topic, message, headers, to)
    relays.add(to.relay, to.log, [offer])
    return Published(None, offer.message.row.id, CREATED, to.log.alias)


def only_destination(topic: str, relay: bool) -> Destination | None:
    """Return where all messages of a topic go, if it is on one database; else None."""
    return chooser(topic, relay)("", None) if len(settings.databases_of(topic)) == 1 else None


def _no_iterator(topic: str) -> InvalidMessage:
    return InvalidMessage(
        f"topic {topic!r} is on several databases, so an iterator cannot be published in one transaction: give lists"
    )


def publish_many(
    topic: str, messages: Iterable[NewMessage | Any], traced: Callable[[Any], Any] | None, relay: bool
) -> PublishedMany:
    """Publish many messages, each on its database."""
    if isinstance(messages, Iterator):
        raise _no_iterator(topic)
    new = [message if isinstance(message, NewMessage) else NewMessage(message) for message in messages]
    choose = chooser(topic, relay)
    destinations = [choose(message.key, message.id) for message in new]
    if relay and len(set(destinations)) > 1 and not open_logs():
        with destinations[0].log.atomic():
            return publish_many(topic, new, traced, relay)
    headers = [message.headers if traced is None else traced(message.headers) for message in new]
    call = _Call(topic, new, headers, destinations)
    call.check()  # all of them, before one is published
    return call.run()


def _offer(topic: str, message: NewMessage, headers: Any, to: Destination) -> Offer:
    log = to.relay or to.log
    info = planned(log, topic) if to.relay else to_publish(log, topic)
    return OfferMaker(log, info).offer(message, headers)


class _Call:
    """One call of publish_many: its messages by where they go. A database that does not answer fails alone."""

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
            failed = {to.log.alias: error for to, error in self.failed.items()}
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
                if open_logs() or len(self.messages) == len(indexes):
                    raise
                if retries.classify(error) is ErrorKind.GONE:
                    retries.drop_connection(to.log)
                self.failed[to] = error
                self.unpublished += indexes
                del self.parts[to]

    def _encode(self, to: Destination, indexes: Sequence[int]) -> None:
        for index in indexes:
            self.offers[index] = _offer(self.topic, self.messages[index], self.headers[index], to)

    def _add(self, to: Destination, indexes: Sequence[int]) -> None:
        offers = [self.offers[index] for index in indexes]
        if to.relay:
            relays.add(to.relay, to.log, offers)
            statuses: list[Status] = [CREATED] * len(offers)
            ids = [offer.message.row.id for offer in offers]
        else:
            statuses, ids = add_offers(to.log, offers)
            added = [offer for offer, status in zip(offers, statuses) if status != IGNORED]
            if entered := notify_of(to.log, added):
                announce(message_published, publish_many, topic=self.topic, count=entered, database=to.log)
        for index, status, id in zip(indexes, statuses, ids):
            self.statuses[index], self.ids[index] = status, id
