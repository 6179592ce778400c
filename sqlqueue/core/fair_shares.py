"""How what a group may do is divided among its consumer processes, and its circuit breaker. Pure.

A rate limit is a bucket of tokens, one for each message: it fills at the rate, and processes draw for a while ahead. A
concurrency limit is a number of slots, each of which a process holds until it gives it back or its lease ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

LEAST_TOKENS: Final = 1.0  # that a bucket can hold, however low its rate is
STEP: Final = 0.05  # seconds: tokens are released in steps, so that a fast group does not wake for each message
ROUNDING: Final = 1e-3  # of a step
LONGEST_WAIT: Final = 60.0  # seconds between two trials
WAITS: Final = 6  # at most so many of them in the time of the budget


@dataclass(frozen=True, slots=True)
class Sharer:
    """What a process has said when it last took its share. demand: messages a second that it could start; drew: how
    many seconds ago it drew tokens last; slots: that it holds; wanted: slots that it could use; waits: for how many
    seconds it has waited for a slot while it had none."""

    name: str
    demand: float = 0.0
    drew: float = 0.0
    slots: int = 0
    wanted: int = 0
    waits: float = 0.0


def max_min(limit: float, demands: Mapping[str, float]) -> dict[str, float]:
    """Divide a limit: each gets what it asks for, or as much as everybody else who does not (max-min fairness)."""
    shares: dict[str, float] = {}
    left, remaining = limit, len(demands)
    for name, demand in sorted(demands.items(), key=lambda item: (item[1], item[0])):
        shares[name] = min(demand, left / remaining)
        left -= shares[name]
        remaining -= 1
    return shares


def bucket(tokens: float, seconds: float, rate: float, ahead: float) -> float:
    """Return what a bucket holds `seconds` after it held `tokens`: one token, and what its rate (a second) yields in
    `ahead` seconds, at most."""
    return min(LEAST_TOKENS + rate * ahead, tokens + max(0.0, seconds) * rate)


def draw(me: Sharer, others: Sequence[Sharer], tokens: float, rate: float, ahead: float) -> int:
    """Return how many tokens a process gets that draws for `ahead` seconds: its fair share since its last draw, and
    what the others have not earned by their shares.

    Shares are counted in whole tokens: of those that have earned none, the first to come gets what is there, and
    each has earned one after a while.
    """
    shares = max_min(rate, {one.name: one.demand for one in [me, *others]})
    reserved = sum(int(min(shares[one.name] * one.drew, max(1.0, one.demand * ahead))) for one in others)
    earned = min(int(shares[me.name] * me.drew), int(tokens))
    needed = max(1, round(me.demand * ahead)) if me.demand > 0 else 0
    return max(0, min(needed, max(earned, int(tokens - reserved))))


def slots(me: Sharer, others: Sequence[Sharer], limit: int, running: int, yield_after: float) -> int:
    """Return how many slots a process has from now on: its fair share of those that are free or its own, and never
    fewer than the handlers that it runs. Who has waited longer than `yield_after` seconds gets one before who has had
    some."""
    everyone = [me, *others]
    shares = max_min(limit, {one.name: one.wanted for one in everyone})
    fair = {name: int(share + 1e-9) for name, share in shares.items()}
    left = limit - sum(fair.values())
    for one in _by_waiting(everyone, yield_after):
        if left <= 0:
            break
        if fair[one.name] < one.wanted:
            fair[one.name] += 1
            left -= 1
    free = limit - sum(one.slots for one in others)
    return max(running, min(fair[me.name], free))


def _by_waiting(sharers: Iterable[Sharer], yield_after: float) -> list[Sharer]:
    """Return who has waited for long, the longest first, then who has slots, then the others."""
    return sorted(
        sharers,
        key=lambda one: (-one.waits if one.waits >= yield_after else 0.0, -min(one.slots, 1), -one.waits, one.name),
    )


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
