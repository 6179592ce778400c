"""A delivery: a message as handed to a handler."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from sqlqueue.core.codec import decode
from sqlqueue.core.plan import Hand
from sqlqueue.database.clock import moment
from sqlqueue.exceptions import LeaseLost, seconds


class Delivery:
    """The message, the attempt (1 is the first), and the group that it is for."""

    def __init__(self, hand: Hand):
        self._hand = hand

    @cached_property
    def payload(self) -> Any:
        """The published value; decoded at its first use."""
        return decode(self._hand.message.payload)

    @cached_property
    def headers(self) -> dict[str, Any]:
        """The published headers, {} if there were none."""
        return decode(self._hand.message.headers) or {}

    @property
    def key(self) -> str:
        """The ordering key; "" for none."""
        return self._hand.message.key

    @property
    def id(self) -> str:
        """The message's id."""
        return self._hand.message.id

    @property
    def offset(self) -> int:
        """Where the message stands in the log."""
        return self._hand.message.offset

    @property
    def attempt(self) -> int:
        """1 at the first delivery; postponed and handed-back ones are not counted."""
        return self._hand.attempt

    @property
    def topic(self) -> str:
        """The topic it was published to."""
        return self._hand.stream.address.topic

    @property
    def partition(self) -> int:
        """The partition that its key belongs to."""
        return self._hand.stream.address.partition

    @property
    def priority(self) -> int:
        """Lower ones are delivered first."""
        return self._hand.stream.address.priority

    @property
    def group(self) -> str:
        """The consumer group that it is delivered for."""
        return self._hand.stream.address.group

    @cached_property
    def created_at(self) -> datetime:
        """When it was published, by the database's clock, in UTC."""
        return moment(self._hand.message.created)

    def extend(self, seconds: float | timedelta) -> None:
        """Let the handler run for so many seconds from now before it counts as timed out; no attempt is charged.

        Raises LeaseLost if the message is not this consumer's any more: stop working on it, somebody else does.
        """
        self.check_lease()
        self._hand.deadline = time.monotonic() + _seconds(seconds, "seconds")

    def check_lease(self) -> None:
        """Raise LeaseLost if the partition has another owner, or this delivery has timed out."""
        hand = self._hand
        if hand.stream.lost or hand.outcome is not None:
            raise LeaseLost

    def __repr__(self) -> str:
        return f"<Delivery {self.topic}[{self.partition}]@{self.offset} attempt {self.attempt} for {self.group}>"


_seconds = seconds
