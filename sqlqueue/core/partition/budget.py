"""How much to load, so that the payloads and headers in memory keep within their bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from sqlqueue.core.settle_plan import FetchedMessage

PREFETCH_BYTES: Final = 64 * 1024 * 1024  # of a process, unless the setting says otherwise
MARGIN: Final = 2  # so much heavier than the last ones a message may be without a statement of its own


class ReadBudget:
    """What may be loaded of one partition, by what it has in memory, and by the weight of the last messages.

    share: bytes that its payloads and headers may have in memory: read, with handlers, or on their way there. Reading
    onward takes half of it; the other half is for messages whose turn has come. Whatever is to be read, one message may
    be, so the share can be overrun by a few. held: returns what it has in memory now.
    """

    def __init__(self, batch_size: int, held: Callable[[], int]):
        self.share = PREFETCH_BYTES
        self._batch_size, self._held = batch_size, held
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

    # -- bytes --------------------------------------------------------------------------------------------------------

    @property
    def onward(self) -> int:
        """How many bytes reading onward may add; 0 or less: none."""
        return self.half - self._held()

    @property
    def loadable(self) -> int:
        """How many bytes of messages may be added whose turn has come; 0 or less: none."""
        return self.share - self._held()

    @property
    def half(self) -> int:
        """How many bytes reading onward fills."""
        return max(1, self.share // 2)

    # -- messages -----------------------------------------------------------------------------------------------------

    def fitting(self, most: int, size: int | None = None) -> int:
        """Return how many messages have so many bytes (by default, what reading onward fills), at most `most`, and at
        least one."""
        size = self.half if size is None else size
        return max(1, min(most, size // (MARGIN * (self._heaviest or 1))))

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
        return self.most_ready + self.at_once
