"""Adding offers to one database, and telling its consumers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

from sqlqueue.conf import settings
from sqlqueue.database.scheduling import Due
from sqlqueue.log.conflicts import Offer, add_many, add_one
from sqlqueue.log.notifier import notify_after_commit
from sqlqueue.log.published import Status
from sqlqueue.log.uniqueness import add_unique, add_unique_many


def add_offer(alias: str, offer: Offer) -> tuple[int | None, str, Status]:
    """Add one message; return its offset, id and status."""
    if offer.unique_for is not None:
        return add_unique(alias, offer)
    offset, status = add_one(alias, offer)
    return offset, offer.message.row.id, status


def add_offers(alias: str, offers: Sequence[Offer]) -> tuple[list[Status], list[str]]:
    """Add messages, all or none of them; return statuses and ids."""
    if any(offer.unique_for is not None for offer in offers):
        return add_unique_many(alias, offers)
    return add_many(alias, offers) if offers else [], [offer.message.row.id for offer in offers]


def notify_of(alias: str, offers: Sequence[Offer]) -> int:
    """Notify consumers of what was published or replaced; return how many of them have entered the log."""
    scheduled = [offer.message for offer in offers if offer.scheduled]
    if scheduled:
        _notify_if_soon(alias, scheduled)
    entered = [offer.message.row for offer in offers if not offer.scheduled]
    if entered:
        notify_after_commit(alias, entered)
    return len(entered)


def _notify_if_soon(alias: str, messages: Sequence[Due]) -> None:
    """Notify if a message is due before idle consumers may poll next."""
    now = datetime.now(timezone.utc)
    for _, delay, at in messages:
        due_in = (at - now).total_seconds() if at is not None else delay
        if due_in is not None and due_in < 2 * settings.IDLE_POLL_INTERVAL:
            notify_after_commit(alias)
            return
