"""The circuit breaker of a group: too many failures in a time open it, and a message that succeeds closes it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

LONGEST_WAIT: Final = 60.0  # seconds between two trials
WAITS: Final = 6  # at most so many of them in the time of the budget


@dataclass(frozen=True, slots=True)
class Breaker:
    """What is known of a group's failures. failures: that were counted since `since`; opened_at: None while it is
    closed; trial_at: while it is open, when the next message may be tried."""

    failures: int = 0
    since: datetime | None = None
    opened_at: datetime | None = None
    trial_at: datetime | None = None

    def counted(self, failed: int, most: int, seconds: float, least_wait: float, now: datetime) -> Breaker:
        """Return the breaker after so many more failures of those allowed (`most` in so many seconds, which begin with
        the first one). least_wait: seconds before the first trial."""
        if self.opened_at is not None or not failed:
            return self
        over = self.since is None or not timedelta() <= now - self.since < timedelta(seconds=seconds)
        found = Breaker(failed, now) if over else replace(self, failures=self.failures + failed)
        if found.failures <= most:
            return found
        return replace(found, opened_at=now, trial_at=now + wait(seconds, least_wait))

    def tried(self, succeeded: bool, seconds: float, least_wait: float, now: datetime) -> Breaker:
        """Return the breaker after a trial, or while one runs: closed if it has succeeded, else with a later trial."""
        if self.opened_at is None:
            return self
        return Breaker() if succeeded else replace(self, trial_at=now + wait(seconds, least_wait))

    def admits(self, seconds: float, least_wait: float, now: datetime) -> bool:
        """Tell whether a message may be tried now. A trial that is further away than they ever are is due: the clock
        was set back."""
        return self.trial_at is not None and not now < self.trial_at <= now + wait(seconds, least_wait)


def wait(seconds: float, least: float) -> timedelta:
    """Return the time between two trials, for a budget of so many seconds."""
    return timedelta(seconds=max(least, min(LONGEST_WAIT, seconds / WAITS)))
