"""What the consumer's filter leaves out of a partition: it is acked when it is read, and counted once the position has
passed it."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Sequence
from operator import itemgetter
from typing import Final

from sqlqueue.core.effects import of_headers
from sqlqueue.core.partition.window import Found
from sqlqueue.core.settle_plan import FetchedMessage
from sqlqueue.core.where import Row, Where

FIELDS: Final = len(FetchedMessage._fields)
HEADERS: Final = FetchedMessage._fields.index("headers")
TARGET: Final = FetchedMessage._fields.index("target_group")


RARE: Final = 8  # one of so many matches, or fewer: to read the others whole costs more than a statement for those
ENOUGH: Final = 20  # messages, the latest read before: fewer say nothing, and cost nothing


class Sieve:
    """The filter of one assigned partition. left_out: what was left out and P has not passed: up to where, and how many
    messages, by each read."""

    def __init__(self, group: str, where: Where):
        self.wants = where.matches
        self._where = where
        self._targets = ("", group)
        self.left_out: deque[tuple[int, int]] = deque()
        self._matched = self._seen = 0  # of the latest messages; each read halves what those before it count for

    @property
    def sifts(self) -> bool:
        """Whether it leaves out nearly all, so that only what matches is to be read whole."""
        return self._seen >= ENOUGH and self._matched * RARE <= self._seen

    def take(
        self, messages: Sequence[FetchedMessage], horizon: int, remembered: Container[int]
    ) -> Sequence[FetchedMessage]:
        """Return what is to be received of messages that were read whole: what matches, and what has to be
        remembered."""
        matching = self._where.select(messages)
        self._note(len(matching), len(messages))
        if len(matching) == len(messages):
            return messages
        chosen = {message[0] for message in matching}
        others = [message for message in messages if message[0] not in chosen] if chosen else messages
        return sorted([*matching, *self._leave_out(others, horizon, remembered)], key=itemgetter(0))

    def take_sifted(self, found: Found, horizon: int, remembered: Container[int]) -> Sequence[FetchedMessage]:
        """Return what is to be received besides what matches, of a read that sifts."""
        self._note(len(found.messages) + len(found.gone), found.total)
        rows = self._leave_out(found.left_out, horizon, remembered)
        return [FetchedMessage._make(row[:FIELDS]) for row in rows]

    def _note(self, matched: int, seen: int) -> None:
        if seen:
            self._matched, self._seen = self._matched // 2 + matched, self._seen // 2 + seen

    def _leave_out(self, rows: Sequence[Row], horizon: int, remembered: Container[int]) -> list[Row]:
        """Leave out messages that do not match, and return those that have to be remembered. At or below the horizon
        they are not, but for those that have effects: F is there once the read is recorded, and nothing
        but P has to pass them. A message for another group is none of the filter's."""
        targets = self._targets
        kept = [
            row
            for row in rows
            if row[0] > horizon
            or row[TARGET] not in targets
            or row[0] in remembered
            or (row[HEADERS] and of_headers(row[HEADERS]))
        ]
        if count := len(rows) - len(kept):
            self.left_out.append((min(rows[-1][0], horizon), count))
        return kept

    def passed(self, position: int) -> int:
        """Return how many messages the position has now passed that were left out."""
        count = 0
        while self.left_out and self.left_out[0][0] <= position:
            count += self.left_out.popleft()[1]
        return count
