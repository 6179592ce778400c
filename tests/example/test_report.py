"""The report says what holds, and shows what does not."""

from dataclasses import replace

import pytest
from rich.console import Console

from example_project.flights.check import Check
from example_project.flights.comparison import compare_results
from example_project.flights.dead_letters import DeadLetter
from example_project.flights.expected import expected_results
from example_project.flights.models import DelayStatistic
from example_project.flights.report import Timings, print_report
from example_project.flights.results import FlightResults
from tests.example.flights import make_flight

pytestmark = pytest.mark.django_db

FLIGHTS = [make_flight(number=number) for number in (1, 2)]
DEAD_LETTERS = [DeadLetter("alerts", "UA4-2013-01-01-EWR", "never departed", "NeverDeparted: …", attempts=3)]


def check_of(found: FlightResults) -> Check:
    return Check(
        2, {"aircraft": 2, "delays": 2, "alerts": 1}, DEAD_LETTERS, compare_results(expected_results(FLIGHTS), found)
    )


def printed(check: Check, timings: Timings | None = None) -> str:
    console = Console(width=160)
    with console.capture() as capture:
        print_report(console, check, timings)
    return capture.get()


def test_equal_results_are_said_to_be_equal() -> None:
    check = check_of(expected_results(FLIGHTS))
    assert check.holds
    said = printed(check, Timings(published=2, publishing=0.5, consuming=2.5))
    assert "OK   order per aircraft: 1 of 1 aircraft equal the direct computation" in said
    assert "FAIL" not in said
    assert "Published 2 flights in 0.5 s: 4 flights/s." in said
    assert "Settled 5 messages in 2.5 s: 2 messages/s" in said


def test_an_altered_digest_is_shown() -> None:
    found = expected_results(FLIGHTS)
    found.aircraft["N1"] = replace(found.aircraft["N1"], digest="altered")
    check = check_of(found)
    assert not check.holds
    said = printed(check)
    assert "FAIL order per aircraft: 0 of 1 aircraft equal the direct computation" in said
    assert "the first of 1 differences" in said
    assert "altered" in said


def test_dead_letters_are_counted_by_reason_with_one_of_them() -> None:
    said = printed(check_of(expected_results(FLIGHTS)))
    line = next(line for line in said.splitlines() if "never departed" in line)
    assert line.split() == ["alerts", "never", "departed", "1", "3", "UA4-2013-01-01-EWR"]


def test_carriers_are_added_over_the_airports() -> None:
    for origin, longest in (("EWR", 30), ("JFK", 80)):
        DelayStatistic.objects.create(
            origin=origin, carrier="UA", flights=3, departed=2, cancelled=1, total_delay=50, max_delay=longest
        )
    line = next(line for line in printed(check_of(FlightResults())).splitlines() if line.startswith(" UA"))
    assert line.split() == ["UA", "6", "4", "2", "25.0", "80"]
