"""Handing over what a pull loop has received."""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async

from sqlqueue.consumers.async_pull import AsyncDelivery
from sqlqueue.consumers.pulled_delivery import PulledDelivery
from sqlqueue.contrib.people.exceptions import HandOver


def hand_over(delivery: PulledDelivery, reason: str = "", *, form: dict[str, Any] | None = None) -> None:
    """Settle a delivery of `subscribe()` by making it a work item, as a handler's HandOver does; unlike `ack`, it is no
    part of a transaction that is open. Raises InvalidMessage for a form that cannot be stored: then it is not
    settled."""
    delivery.settle_with_effect("hand_over", HandOver(reason, form=form))


async def ahand_over(delivery: AsyncDelivery, reason: str = "", *, form: dict[str, Any] | None = None) -> None:
    """Settle a delivery of `asubscribe()` so, in the thread of its other database calls."""
    await sync_to_async(hand_over)(delivery.sync, reason, form=form)
