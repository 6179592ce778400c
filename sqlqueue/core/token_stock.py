"""The tokens that a process has drawn from its group's rate limit. Times are monotonic seconds."""

from __future__ import annotations

import math
from typing import Final

STEP: Final = 0.05  # seconds: tokens are released in steps, so that a fast group does not wake for each message
ROUNDING: Final = 1e-3  # of a step


class TokenStock:
    """Releases the tokens of a draw evenly until the next one, so that a draw for seconds is no burst. What is left
    when `lasts` seconds have passed is void: the process could not draw again."""

    def __init__(self) -> None:
        self._drawn = self._used = 0
        self._began = self._spread = 0.0
        self._ends = 0.0

    def draw(self, tokens: int, now: float, spread: float, lasts: float) -> None:
        """Replace what is left by `tokens`, to be released over `spread` seconds, the first at once."""
        self._drawn, self._used = tokens, 0
        self._began, self._spread, self._ends = now, spread, now + lasts

    @property
    def left(self) -> int:
        """How many were not used."""
        return self._drawn - self._used

    def available(self, now: float) -> int:
        """Return how many may be used now."""
        if now >= self._ends:
            return 0
        return self._released(now) - self._used

    def use(self, tokens: int) -> None:
        """Use so many of those that are available."""
        self._used += tokens

    def give_back(self, tokens: int) -> None:
        """Have so many again that were used in vain; none of an earlier draw."""
        self._used = max(0, self._used - tokens)

    def next_release(self, now: float) -> float:
        """Return when more may be used; infinity without another draw."""
        if not self.left or now >= self._ends:
            return math.inf
        wanted = math.ceil(self._used / self._drawn * self._spread / STEP)
        return self._began + max(self._steps(now) + 1, wanted) * STEP

    def _released(self, now: float) -> int:
        if not self._spread or now - self._began >= self._spread:
            return self._drawn
        return min(self._drawn, 1 + int(self._drawn * self._steps(now) * STEP / self._spread))

    def _steps(self, now: float) -> int:
        """Return how many steps have passed; one that ends now has, however it was rounded."""
        return math.floor((now - self._began) / STEP + ROUNDING)
