"""A comparison holds only if every entry is equal: it fails for what is changed, missing or too much."""

from dataclasses import fields, replace

import pytest

from example_project.flights.comparison import Difference, compare, compare_results
from example_project.flights.expected import expected_results
from example_project.flights.results import FlightResults
from tests.example.flights import cancelled, make_flight

FLIGHTS = [make_flight(number=1), make_flight(number=2, departure_delay=200), cancelled(number=3)]


def results() -> FlightResults:
    return expected_results(FLIGHTS)


def test_equal_results_hold() -> None:
    comparisons = compare_results(results(), results())
    assert all(comparison.holds for comparison in comparisons)
    assert str(comparisons[2]) == "order per aircraft: 1 of 1 aircraft equal the direct computation"


def test_an_altered_digest_is_a_difference() -> None:
    found = results()
    found.aircraft["N1"] = replace(found.aircraft["N1"], digest="0" * 64)
    failing = [comparison for comparison in compare_results(results(), found) if not comparison.holds]
    assert [comparison.promise for comparison in failing] == ["order per aircraft"]
    assert str(failing[0]) == "order per aircraft: 0 of 1 aircraft equal the direct computation"
    assert failing[0].differences == (Difference("N1", results().aircraft["N1"], found.aircraft["N1"]),)


@pytest.mark.parametrize("kind", [field.name for field in fields(FlightResults)])
def test_a_loss_in_any_kind_of_results_is_a_difference(kind: str) -> None:
    found = results()
    getattr(found, kind).popitem()
    assert [comparison.holds for comparison in compare_results(results(), found)].count(False) == 1


@pytest.mark.parametrize("kind", [field.name for field in fields(FlightResults)])
def test_a_surplus_in_any_kind_of_results_is_a_difference(kind: str) -> None:
    found = results()
    getattr(found, kind)["surplus"] = "anything"
    assert [comparison.holds for comparison in compare_results(results(), found)].count(False) == 1


def test_changed_missing_and_surplus_entries_are_told_apart() -> None:
    comparison = compare("things", "things", {"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 7, "d": 4})
    assert comparison.differences == (Difference("b", 2, 7), Difference("c", 3, None), Difference("d", None, 4))
    assert (comparison.equal, comparison.expected) == (1, 3)
