"""The results of the three groups: the values that are compared."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class AircraftHistory:
    """One aircraft's flights: how many, the last one, and the digest of all of them in their order."""

    legs: int
    last_flight: str
    digest: str


@dataclass(frozen=True, slots=True)
class DelayTotals:
    """One airport's and carrier's departures; delays in minutes."""

    flights: int
    departed: int
    cancelled: int
    total_delay: int
    max_delay: int | None


@dataclass(slots=True)
class FlightResults:
    """The results of the flights' consumption, computed directly or found in the tables."""

    messages: dict[str, int] = field(default_factory=dict)
    """How many messages there are, by flight."""
    settled: dict[str, int] = field(default_factory=dict)
    """How many flights are settled, by group."""
    aircraft: dict[str, AircraftHistory] = field(default_factory=dict)
    """By tail number."""
    delays: dict[tuple[str, str], DelayTotals] = field(default_factory=dict)
    """By airport and carrier."""
    alerts: dict[str, int] = field(default_factory=dict)
    """The delay in minutes, by flight."""
    dead_letters: dict[tuple[str, str], str] = field(default_factory=dict)
    """The reason, by group and flight."""
