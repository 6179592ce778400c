"""How what a group may do is divided among its consumer processes. Pure.

A rate limit is a bucket of tokens, one for each message: it fills at the rate, and processes draw for a while ahead. A
concurrency limit is a number of slots, each of which a process holds until it gives it back or its lease ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

LEAST_TOKENS: Final = 1.0  # that a bucket can hold, however low its rate is


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
