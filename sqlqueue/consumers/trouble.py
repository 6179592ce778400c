"""Trouble: the database's errors that one part of a process meets again and again."""

from __future__ import annotations

from typing import Final

from sqlqueue.core.outcomes import message_of, storable

FAILING: Final = 3  # errors in a row: a database that is restarted causes fewer
FIRST_PAUSE: Final = 0.1  # seconds before the next try; it doubles with each error
LONGEST_PAUSE: Final = 2.0


class Trouble:
    """Counts the errors in a row of a part of a process, whose name operators know."""

    def __init__(self, name: str):
        self.name = name
        self.failures, self._error = 0, ""

    def failed(self, error: BaseException) -> None:
        """Note an error. From any thread."""
        self._error = storable(message_of(error) or type(error).__name__)
        self.failures += 1

    def over(self) -> None:
        """Note that it has succeeded."""
        self.failures = 0

    @property
    def pause(self) -> float:
        """Seconds to wait before it is tried again; 0 without an error."""
        return min(FIRST_PAUSE * 2 ** min(self.failures - 1, 10), LONGEST_PAUSE) if self.failures else 0.0

    @property
    def failing(self) -> str:
        """The name and the last error of a part that fails again and again; "" for another."""
        return f"{self.name}: {self._error}" if self.failures >= FAILING else ""
