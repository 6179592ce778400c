"""Adding offers to one database, and telling its consumers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

from sqlqueue.conf import settings
from sqlqueue.database.gate import insert_many, insert_one
from sqlqueue.database.insert_sql import LogRow
from sqlqueue.database.log import Log
from sqlqueue.database.scheduling import Due
from sqlqueue.log.conflicts import Offer, add_many, add_one
from sqlqueue.log.notifier import notify_after_commit
from sqlqueue.log.published import CREATED, IGNORED, Status
from sqlqueue.log.uniqueness import add_unique, add_unique_many


def add_row(log: Log, row: LogRow) -> int | None:
    """Add one plain message (see OfferMaker.plain_row), and notify its consumers; return its offset."""
    offset, _ = insert_one(log, row, may_repeat=False)
    notify_after_commit(log, (row,))
    return offset


def add_all(log: Log, messages: Sequence[LogRow | Offer]) -> tuple[list[Status], list[str], int]:
    """Add messages, of which the plain ones are just rows, all or none of them, and notify their consumers; return
    statuses, ids, and how many of them have entered the log."""
    rows = [one for one in messages if isinstance(one, LogRow)]
    if len(rows) == len(messages):
        if rows:
            insert_many(log, rows, may_repeat=False)
            notify_after_commit(log, rows)
        return [CREATED] * len(rows), [row.id for row in rows], len(rows)
    offers = [Offer(Due(one, None, None), False, False, False) if isinstance(one, LogRow) else one for one in messages]
    statuses, ids = add_offers(log, offers)
    entered = notify_of(log, [offer for offer, status in zip(offers, statuses) if status != IGNORED])
    return statuses, ids, entered


def add_offer(log: Log, offer: Offer) -> tuple[int | None, str, Status]:
    """Add one message; return its offset, id and status."""
    if offer.unique_for is not None:
        return add_unique(log, offer)
    offset, status = add_one(log, offer)
    return offset, offer.message.row.id, status


def add_offers(log: Log, offers: Sequence[Offer]) -> tuple[list[Status], list[str]]:
    """Add messages, all or none of them; return statuses and ids."""
    if any(offer.unique_for is not None for offer in offers):
        return add_unique_many(log, offers)
    return add_many(log, offers) if offers else [], [offer.message.row.id for offer in offers]


def notify_of(log: Log, offers: Sequence[Offer]) -> int:
    """Notify consumers of what was published or replaced; return how many of them have entered the log."""
    scheduled = [offer.message for offer in offers if offer.scheduled]
    if scheduled:
        _notify_if_soon(log, scheduled)
    entered = [offer.message.row for offer in offers if not offer.scheduled]
    if entered:
        notify_after_commit(log, entered)
    return len(entered)


def _notify_if_soon(log: Log, messages: Sequence[Due]) -> None:
    """Notify if a message is due before idle consumers may poll next."""
    now = datetime.now(timezone.utc)
    for _, delay, at in messages:
        due_in = (at - now).total_seconds() if at is not None else delay
        if due_in is not None and due_in < 2 * settings.IDLE_POLL_INTERVAL:
            notify_after_commit(log)
            return
