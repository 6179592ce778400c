"""Publishing with unique_for: while a message of the topic and key is pending, another one is ignored, or replaces it.

The row of the key is locked first, so of two publishers the second sees what the first has done, once that has
committed. Then everything else is as without unique_for: an id that is taken is ignored all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from sqlqueue.database import retries
from sqlqueue.database.log import Log
from sqlqueue.database.scheduling import find_existing
from sqlqueue.log.conflicts import Offer, add, add_many, add_one
from sqlqueue.log.published import CREATED, IGNORED, Status
from sqlqueue.log.unique_messages import Pending, digest_of, lock, renew

T = TypeVar("T")


class Placed(NamedTuple):
    """What has become of an offer: the offset and the id of its message, or of the one for which it was ignored."""

    offset: int | None
    id: str
    status: Status


def add_unique(log: Log, offer: Offer) -> Placed:
    """Publish one message with unique_for. After a deadlock it is run again, as far as it is no part of a caller's
    transaction."""
    return _in_one_transaction(log, _add, log, offer)


def add_unique_many(log: Log, offers: Sequence[Offer]) -> tuple[list[Status], list[str]]:
    """Publish messages, some of them with unique_for, all or none of them; return their statuses and ids, in their
    order. Of those of the same key each finds what the one before it has left."""
    return _in_one_transaction(log, _add_many, log, offers)


def _in_one_transaction(log: Log, operation: Callable[..., T], *values: object) -> T:
    if log.connection.in_atomic_block:
        return operation(*values)
    return retries.run(log, operation, *values)


def _digest(offer: Offer) -> str:
    row = offer.message.row
    return digest_of(row.topic, row.key)


def _keeps_out(found: Pending | None, offer: Offer) -> bool:
    return found is not None and offer.unique_for is not None and found.age < offer.unique_for


def _add(log: Log, offer: Offer) -> Placed:
    digest, row = _digest(offer), offer.message.row
    locked = lock(log, {digest: row}, {digest} if offer.named else ())
    found = locked.pending.get(digest)
    if found is not None and _keeps_out(found, offer):
        return _beside(log, offer, found)
    offset, status = add_one(log, offer)
    if status != IGNORED and digest not in locked.added:
        renew(log, [(digest, row)])
    return Placed(offset, row.id, status)


def _beside(log: Log, offer: Offer, found: Pending) -> Placed:
    """Do with an offer what is to be done while another message is pending."""
    if not (offer.replace and found.scheduled):
        return Placed(found.offset, found.id, IGNORED)
    message = offer.message
    row = message.row
    if offer.named and row.id != found.id:
        taken = find_existing(log, row).offset
        if taken is not None:
            return Placed(taken, row.id, IGNORED)
    row = row._replace(id=found.id)
    offset, status = add(log, offer._replace(message=message._replace(row=row), named=True))
    if status == CREATED:  # it was cancelled meanwhile
        renew(log, [(_digest(offer), row)])
    return Placed(offset, found.id, status)


def _add_many(log: Log, offers: Sequence[Offer]) -> tuple[list[Status], list[str]]:
    with log.atomic(savepoint=False):
        return _Call(log, offers).run()


class _Call:
    """One call of publish_many. Messages that nothing keeps out wait in `_new`, to be added in bulk."""

    def __init__(self, log: Log, offers: Sequence[Offer]):
        self.log, self.offers = log, offers
        self.statuses: list[Status] = [CREATED] * len(offers)
        self.ids = [offer.message.row.id for offer in offers]
        first = {_digest(one): one for one in reversed(offers) if one.unique_for is not None}
        named = {digest for digest, one in first.items() if one.named}
        rows = {digest: one.message.row for digest, one in first.items()}
        self._pending, self._added = lock(log, rows, named)
        self._new: list[int] = []
        self._waiting: dict[str, int] = {}  # those of them that have unique_for, by digest
        self._last: dict[str, int] = {}  # the index of the last one that was added, by digest

    def run(self) -> tuple[list[Status], list[str]]:
        """Add them; return statuses and ids."""
        for index, offer in enumerate(self.offers):
            if offer.unique_for is None:
                self._new.append(index)
                continue
            found = self._found(offer)
            if found is None or not _keeps_out(found, offer):
                self._waiting[_digest(offer)] = index
                self._new.append(index)
            else:
                self._put_beside(index, offer, found)
        self._add_new()
        last = [(digest, index) for digest, index in self._last.items() if digest not in self._added]
        renew(self.log, [(digest, self.offers[index].message.row) for digest, index in last])
        return self.statuses, self.ids

    def _found(self, offer: Offer) -> Pending | None:
        digest = _digest(offer)
        before = self._waiting.get(digest)
        if before is not None:
            first = self.offers[before]
            if not first.named and not (offer.replace and first.scheduled):  # then it is new for certain, and stays
                return Pending(self.ids[before], None, first.scheduled, 0.0)
            self._add_new()
        return self._pending.get(digest)

    def _put_beside(self, index: int, offer: Offer, found: Pending) -> None:
        if offer.replace and found.scheduled:
            self._add_new()  # those before it, to keep the order
        offset, self.ids[index], self.statuses[index] = _beside(self.log, offer, found)
        if self.statuses[index] != IGNORED:
            self._pending[_digest(offer)] = found._replace(offset=offset, scheduled=offset is None)

    def _add_new(self) -> None:
        indexes, self._new = self._new, []
        some = [self.offers[index] for index in indexes]
        for index, status in zip(indexes, add_many(self.log, some) if some else ()):
            self.statuses[index] = status
        for digest, index in self._waiting.items():
            if self.statuses[index] != IGNORED:
                self._last[digest] = index
                self._pending[digest] = Pending(self.ids[index], None, self.offers[index].scheduled, 0.0)
        self._waiting = {}
