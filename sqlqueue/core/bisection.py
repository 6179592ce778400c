"""How an execution goes on behind a message that fails: how a batch is divided, so that what fails has failed alone,
and nothing else is charged; and which messages wait for one before them. Pure."""

from __future__ import annotations

import sys
from typing import Final

from sqlqueue.core.settle_plan import Attempt

EVERYTHING: Final = sys.maxsize
OUTAGE: Final = 10  # messages that fail alone, one behind another: it is not they that are bad


class Bisection:
    """Says how many of the next messages are tried together; the caller tries them in their order, and says what came
    of it.

    With one that fails among n it needs at most log2(n) + 3 tries after the first, and with several of them about
    log2(n) for each: Hwang's generalized binary splitting (1972), which is asked for prefixes only.
    """

    def __init__(self, alone: bool = False):
        self._alone = alone  # each message has failed before
        self._suspected = 0  # one of so many next messages fails
        self._passed = self._found = self._in_a_row = 0
        self._size = EVERYTHING

    @property
    def size(self) -> int:
        """How many messages to try next, at most."""
        if self._alone:
            return 1
        if self._suspected:
            return max(1, self._suspected // 2)
        return self._size

    @property
    def outage(self) -> bool:
        """So many have failed alone, one behind another, that the others are not tried."""
        return not self._alone and self._in_a_row >= OUTAGE

    def succeeded(self, count: int) -> None:
        """Record that so many messages were tried together, and have an outcome."""
        self._passed += count
        self._in_a_row = 0
        if self._suspected:
            self._suspected = max(0, self._suspected - count)
        elif self._size < EVERYTHING:
            self._size *= 2

    def failed(self, count: int) -> None:
        """Record that so many messages, more than one, have failed together: they will be tried again."""
        self._suspected = count

    def failed_alone(self, *, by_its_own_word: bool = False) -> None:
        """Record that the next message has failed alone, and has its outcome. by_its_own_word: the handler has said
        what should become of it."""
        self._suspected = 0
        self._found += 1
        self._in_a_row = 0 if by_its_own_word else self._in_a_row + 1
        # Perhaps it was the only one. If not, as many as there were for each that has failed so far.
        self._size = EVERYTHING if self._found == 1 else max(1, self._passed // self._found)


class ClosedQueues:
    """The ordering queues of one execution that are closed: a message in them is to be settled, or delivered again,
    before those behind it. For the thread that runs the execution."""

    def __init__(self, ordering: str):
        self._ordering = ordering
        self._closed: dict[str, int] = {}  # by name: the first offset that waits

    def close(self, attempt: Attempt) -> None:
        """Let what is behind a message wait for it."""
        if (name := self._name(attempt)) is not None:
            self._closed[name] = min(attempt.offset, self._closed.get(name, attempt.offset))

    def holds(self, attempt: Attempt) -> bool:
        """Tell whether a message has to wait for an earlier one."""
        if not self._closed or (name := self._name(attempt)) is None:
            return False
        return attempt.offset > self._closed.get(name, attempt.offset)

    def _name(self, attempt: Attempt) -> str | None:
        if self._ordering == "key":
            return attempt.message.key or None
        return "" if self._ordering == "partition" else None
