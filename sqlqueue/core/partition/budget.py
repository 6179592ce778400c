"""How much of a partition is kept in memory, or read with one statement: messages, and the bytes of their payloads and
headers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from sqlqueue.core.settle_plan import FetchedMessage, sizes_of

PREFETCH_BYTES: Final = 64 * 1024 * 1024  # of a process, unless the setting says otherwise
HEADS_LIMIT: Final = 100_000  # messages that wait by their own outcome; beyond it nothing new is read
WINDOW_LIMIT: Final = 10_000  # messages read onward and not yet passed by the position
SCAN_LIMIT: Final = 5_000  # messages of a partition that one scan for those of a waiting key passes
MARGIN: Final = 2  # so much heavier than the last ones a message may be without a statement of its own


class ReadBudget:
    """What may be loaded of one partition, by the weight of the last messages.

    share: bytes that its payloads and headers may have in memory: read, with handlers, or on their way there. Reading
    onward fills half of it; the other half is for messages whose turn has come. Whatever is to be read, one message may
    be, so the share can be overrun by a few.

    half: those bytes. most_ready: with how many ready messages reading stops: their payloads are in memory. at_once:
    how many messages to load with one statement at most. most_held: how many remembered messages in (P, F] a final read
    waits for, and how many ready ones any loading. weighed: whether the size of recent messages is known.
    """

    def __init__(self, batch_size: int):
        self._batch_size = batch_size
        self._heaviest = 0  # characters of the heaviest of the last messages
        self.weighed = False
        self.share = PREFETCH_BYTES

    @property
    def share(self) -> int:
        """See the class."""
        return self._share

    @share.setter
    def share(self, share: int) -> None:
        self._share, self.half = share, max(1, share // 2)
        self._reckon()

    def _reckon(self) -> None:
        self.most_ready = self.fitting(2 * self._batch_size, self.half)
        self.at_once = min(self._batch_size, self.most_ready)
        self.most_held = self.most_ready + self.at_once

    def weigh(self, messages: Iterable[FetchedMessage], left_out: Iterable[tuple[Any, ...]] = ()) -> None:
        """Expect the next messages to be as heavy as the heaviest of these; the effect of a single heavy one decays.
        left_out: of a read that sifts, whose payloads may not have been read: then they say nothing."""
        sizes = sizes_of(messages)
        sizes += [len(payload) for row in left_out if (payload := row[3])]
        if sizes:
            self._heaviest, self.weighed = max(*sizes, self._heaviest // 4), True
            self._reckon()

    def forget(self) -> None:
        """Forget the size of recent messages: the next ones may be heavier."""
        self._heaviest, self.weighed = 0, False
        self._reckon()

    def expected(self, messages: int) -> int:
        """Return how many bytes so many of the next messages have at most; 0 while that is not known."""
        return messages * self._heaviest

    def fitting(self, most: int, size: int) -> int:
        """Return how many messages have so many bytes, at most `most`, and at least one."""
        return max(1, min(most, size // (MARGIN * (self._heaviest or 1))))
