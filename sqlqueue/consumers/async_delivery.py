"""The deliveries of asubscribe(), which their receiver settles."""

from __future__ import annotations

from datetime import timedelta
from functools import cached_property
from typing import Any

from asgiref.sync import sync_to_async

from sqlqueue.consumers.delivery import Delivery
from sqlqueue.consumers.pulled_delivery import PulledDelivery


class AsyncDelivery(Delivery):
    """The async twin of a pulled delivery: its receiver settles it by one of ack, retry, postpone, reject,
    hand_over and fail, in the thread of its other database calls.

    sync: the pulled delivery itself, for the function that sync_to_async runs: in a transaction there, `sync.ack()` is
    part of that.
    """

    def __init__(self, pulled: PulledDelivery):
        super().__init__(pulled._attempt, pulled._payloads)
        self.sync = pulled

    @cached_property
    def payload(self) -> Any:
        """As of any delivery; `sync` has read it perhaps."""
        return self.sync.payload

    @property
    def shard(self) -> str:
        """The name of the shard that it is on; "" without SHARDS."""
        return self.sync.shard

    @property
    def settled(self) -> str:
        """The name of the method that settled it; "" if none did, or in a transaction that was rolled back."""
        return self.sync.settled

    async def ack(self, result: Any = None) -> None:
        """Settle it as done: it is never delivered to this group again. result: as of PulledDelivery.ack."""
        await sync_to_async(self.sync.ack)(result)

    async def retry(self, delay: float | timedelta | None = None, reason: str = "") -> None:
        """Deliver again after `delay` seconds, or the backoff; the attempt is charged. The last attempt makes it a dead
        letter."""
        await sync_to_async(self.sync.retry)(delay, reason)

    async def postpone(self, delay: float | timedelta, reason: str = "") -> None:
        """Deliver again after `delay` seconds; no attempt is charged."""
        await sync_to_async(self.sync.postpone)(delay, reason)

    async def reject(self, reason: str) -> None:
        """Make it a dead letter at once."""
        await sync_to_async(self.sync.reject)(reason)

    async def hand_over(self, reason: str = "", *, form: dict[str, Any] | None = None) -> None:
        """Make it a work item, as a handler's HandOver does. Raises InvalidMessage for a form that cannot be stored:
        then it is not settled."""
        await sync_to_async(self.sync.hand_over)(reason, form=form)

    async def fail(self, error: BaseException) -> None:
        """Settle it as if a handler had raised this error: see max_attempts, retry_for, reject_for and backoff."""
        await sync_to_async(self.sync.fail)(error)
