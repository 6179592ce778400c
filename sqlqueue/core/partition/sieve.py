"""What the consumer's filter leaves out of a partition: it is acked when it is read, and counted once the position has
passed it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Sequence

from sqlqueue.core.membership import batch_of
from sqlqueue.core.settle_plan import FetchedMessage


class Sieve:
    """The filter of one assigned partition; where None: all messages pass."""

    def __init__(self, group: str, where: Callable[[FetchedMessage], bool] | None):
        self._where = where
        self._targets = ("", group)
        # What was left out and P has not passed: up to where, and how many messages, by each read.
        self._left_out: deque[tuple[int, int]] = deque()

    @property
    def filters(self) -> bool:
        """Whether there is a filter."""
        return self._where is not None

    @property
    def has_left_out(self) -> bool:
        """Whether it has left out what the position has not passed."""
        return bool(self._left_out)

    def wants(self, message: FetchedMessage) -> bool:
        """Tell whether the filter matches a message, or there is none."""
        return self._where is None or self._where(message)

    def take(
        self, messages: Sequence[FetchedMessage], horizon: int, remembered: Container[int]
    ) -> Sequence[FetchedMessage]:
        """Return what is to be received. What the filter leaves out at or below the horizon is not remembered at all,
        but for members of batches, which are counted: F is there once the read is recorded, and nothing but P has to
        pass it. A message for another group is none of the filter's."""
        matches, targets = self._where, self._targets
        if matches is None:
            return messages
        wanted = [
            message
            for message in messages
            if message[0] > horizon
            or matches(message)
            or message.target_group not in targets
            or message[0] in remembered
            or batch_of(message[4])
        ]
        if count := len(messages) - len(wanted):
            self._left_out.append((min(messages[-1][0], horizon), count))
        return wanted

    def passed(self, position: int) -> int:
        """Return how many messages the position has now passed that were left out."""
        count = 0
        while self._left_out and self._left_out[0][0] <= position:
            count += self._left_out.popleft()[1]
        return count
