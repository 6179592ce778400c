"""Comparison of found results with expected ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from example_project.flights.results import FlightResults

EQUAL = "equal the direct computation"


@dataclass(frozen=True, slots=True)
class Difference:
    """One entry that is not as expected; None means that there is no entry."""

    key: Any
    expected: Any
    found: Any


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of one kind of results: how many were expected, how many are equal, and every difference."""

    promise: str
    claim: str
    expected: int
    equal: int
    differences: tuple[Difference, ...]

    @property
    def holds(self) -> bool:
        """Whether there is no difference."""
        return not self.differences

    def __str__(self) -> str:
        return f"{self.promise}: {self.equal:,} of {self.expected:,} {self.claim}"


def compare_results(expected: FlightResults, found: FlightResults) -> list[Comparison]:
    """Return one comparison for each kind of results."""
    return [
        compare("published", "flights are in the log once", expected.messages, found.messages),
        compare("settled", "groups have settled every flight", expected.settled, found.settled),
        compare("order per aircraft", f"aircraft {EQUAL}", expected.aircraft, found.aircraft),
        compare("delay statistics", f"airport and carrier pairs {EQUAL}", expected.delays, found.delays),
        compare("alerts", f"long delays {EQUAL}", expected.alerts, found.alerts),
        compare("dead letters", f"failing flights {EQUAL}", expected.dead_letters, found.dead_letters),
    ]


def compare(promise: str, claim: str, expected: Mapping[Any, Any], found: Mapping[Any, Any]) -> Comparison:
    """Compare two mappings entry by entry: changed, missing and surplus entries are differences."""
    keys = [*expected, *(key for key in found if key not in expected)]
    differences = tuple(
        Difference(key, expected.get(key), found.get(key)) for key in keys if expected.get(key) != found.get(key)
    )
    equal = sum(1 for key in expected if key in found and expected[key] == found[key])
    return Comparison(promise, claim, len(expected), equal, differences)
