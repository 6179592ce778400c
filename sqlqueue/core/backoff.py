"""How long a failed message waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import random


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff: `first` seconds, doubling, spread by ±`jitter` of itself, and never more than `longest`.

    What has doubled up to the bound is spread below it, so that not all of it comes due together.

    The defaults are those of Vitess messaging: doubling, bounded, 33 % of jitter against thundering herds.
    """

    first: float = 1.0
    longest: float = 3600.0
    jitter: float = 0.33

    def delay(self, attempt: int, chance: Callable[[], float] = random) -> float:
        """Return the seconds to wait after the given attempt (1 is the first)."""
        doublings = min(max(attempt, 1) - 1, 60)  # 2 ** 60 seconds is past every bound; more would only overflow
        plain = min(self.first * 2.0**doublings, self.longest / (1 + self.jitter))
        return plain * (1 + self.jitter * (2 * chance() - 1))
