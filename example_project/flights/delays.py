"""The delays of a batch of published flights, added up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from example_project.flights.results import DelayTotals


def delays_by_airport_and_carrier(flights: Iterable[dict[str, Any]]) -> dict[tuple[str, str], DelayTotals]:
    """Return the totals of published flights by airport and carrier."""
    delays: dict[tuple[str, str], list[int | None]] = defaultdict(list)
    for flight in flights:
        delays[flight["origin"], flight["carrier"]].append(flight["departure_delay"])
    return {airport_and_carrier: _totals(some) for airport_and_carrier, some in delays.items()}


def _totals(delays: list[int | None]) -> DelayTotals:
    departed = [delay for delay in delays if delay is not None]
    return DelayTotals(
        flights=len(delays),
        departed=len(departed),
        cancelled=len(delays) - len(departed),
        total_delay=sum(departed),
        max_delay=max(departed, default=None),
    )
