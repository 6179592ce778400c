"""Flights made by hand."""

from typing import Any

from example_project.flights.data import Flight

ON_TIME: dict[str, Any] = {
    "carrier": "UA",
    "number": 1,
    "date": "2013-01-01",
    "origin": "EWR",
    "destination": "IAH",
    "tail_number": "N1",
    "scheduled_departure": 515,
    "departure": 515,
    "departure_delay": 0,
    "scheduled_arrival": 819,
    "arrival": 819,
    "arrival_delay": 0,
    "air_time": 227,
    "distance": 1400,
}


def make_flight(**changes: Any) -> Flight:
    """Return a flight that is on time but for `changes`."""
    return Flight(**(ON_TIME | changes))


def cancelled(**changes: Any) -> Flight:
    """Return a flight that never departed."""
    nothing = dict.fromkeys(("departure", "departure_delay", "arrival", "arrival_delay", "air_time"))
    return make_flight(**(nothing | changes))
