"""Checking the flights' consumption against the direct computation."""

from __future__ import annotations

from dataclasses import dataclass

from example_project.flights.comparison import Comparison, compare_results
from example_project.flights.data import read_flights
from example_project.flights.dead_letters import DeadLetter, dead_letters
from example_project.flights.expected import expected_results
from example_project.flights.found import found_results
from example_project.flights.models import PublishedBatch
from example_project.flights.progress import SettledCounter
from example_project.flights.rules import TOPIC


@dataclass(frozen=True, slots=True)
class Check:
    """The results in the tables, and their comparison with the expected ones."""

    flights: int
    settled: dict[str, int]
    dead_letters: list[DeadLetter]
    comparisons: list[Comparison]

    @property
    def holds(self) -> bool:
        """Whether every comparison holds."""
        return all(comparison.holds for comparison in self.comparisons)


def check_flights() -> Check:
    """Compare the groups' results for all published flights with the direct computation over the file."""
    flights = PublishedBatch.objects.published_rows()
    settled = SettledCounter(TOPIC).settled()
    found = dead_letters()
    comparisons = compare_results(expected_results(read_flights(flights)), found_results(settled, found))
    return Check(flights, settled, found, comparisons)
