"""How many messages to load, so that the payloads in memory stay within their limit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlqueue.core.partition import limits
from sqlqueue.core.settle_plan import FetchedMessage


class ReadBudget:
    """How many messages to load, by the size of the last ones."""

    def __init__(self, batch_size: int):
        self._batch_size = batch_size
        self._heaviest: int | None = None  # characters of the heaviest of the last messages

    @property
    def weighed(self) -> bool:
        """Whether the size of recent messages is known."""
        return self._heaviest is not None

    def weigh(self, messages: Iterable[FetchedMessage], left_out: Iterable[tuple[Any, ...]] = ()) -> None:
        """Expect the next messages to be as heavy as the heaviest of these; the effect of a single heavy one decays.
        left_out: of a read that sifts, whose payloads may not have been read: then they say nothing."""
        sizes = [len(message[3] or "") + len(message[4] or "") + len(message[9] or "") for message in messages]
        sizes += [len(payload) for row in left_out if (payload := row[3])]
        if sizes:
            self._heaviest = max(*sizes, (self._heaviest or 0) // 4)

    def forget(self) -> None:
        """Forget the size of recent messages: the next ones may be heavier."""
        self._heaviest = None

    def fitting(self, most: int) -> int:
        """Return how many messages to have in memory, at most `most`: fewer if the last ones were heavy."""
        return max(1, min(most, limits.READY_SIZE // (self._heaviest or 1)))

    @property
    def most_ready(self) -> int:
        """With how many ready messages reading stops: their payloads are in memory."""
        return self.fitting(2 * self._batch_size)

    @property
    def at_once(self) -> int:
        """How many messages to load with one statement at most."""
        return min(self._batch_size, self.most_ready)

    @property
    def most_held(self) -> int:
        """How many remembered messages in (P, F] a final read waits for, and how many ready ones any loading."""
        return self.most_ready + self._batch_size
