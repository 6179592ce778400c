"""The direct computation: the results that the groups must have, from the file and without the queue."""

from __future__ import annotations

from collections.abc import Iterable

from example_project.flights.data import Flight
from example_project.flights.digest import EMPTY_DIGEST, next_digest
from example_project.flights.results import AircraftHistory, DelayTotals, FlightResults
from example_project.flights.rules import GROUPS, LONG_DELAY_MINUTES, NEVER_DEPARTED, NO_TAIL_NUMBER


def expected_results(flights: Iterable[Flight]) -> FlightResults:
    """Return the results that the groups must have after consuming `flights` in this order."""
    results = FlightResults()
    for flight in flights:
        results.messages[flight.id] = results.messages.get(flight.id, 0) + 1
        _add_to_aircraft(results, flight)
        _add_to_delays(results, flight)
        _add_to_alerts(results, flight)
    results.settled = dict.fromkeys(GROUPS, len(results.messages))
    return results


def _add_to_aircraft(results: FlightResults, flight: Flight) -> None:
    if flight.tail_number is None:
        return
    known = results.aircraft.get(flight.tail_number, AircraftHistory(0, "", EMPTY_DIGEST))
    results.aircraft[flight.tail_number] = AircraftHistory(
        legs=known.legs + 1, last_flight=flight.id, digest=next_digest(known.digest, flight.id)
    )


def _add_to_delays(results: FlightResults, flight: Flight) -> None:
    airport_and_carrier = (flight.origin, flight.carrier)
    known = results.delays.get(airport_and_carrier, DelayTotals(0, 0, 0, 0, None))
    delay = flight.departure_delay
    if delay is None:
        results.delays[airport_and_carrier] = DelayTotals(
            known.flights + 1, known.departed, known.cancelled + 1, known.total_delay, known.max_delay
        )
    else:
        longest = delay if known.max_delay is None else max(known.max_delay, delay)
        results.delays[airport_and_carrier] = DelayTotals(
            known.flights + 1, known.departed + 1, known.cancelled, known.total_delay + delay, longest
        )


def _add_to_alerts(results: FlightResults, flight: Flight) -> None:
    if flight.tail_number is None:
        results.dead_letters["alerts", flight.id] = NO_TAIL_NUMBER
    elif flight.departure_delay is None:
        results.dead_letters["alerts", flight.id] = NEVER_DEPARTED
    elif flight.departure_delay > LONG_DELAY_MINUTES:
        results.alerts[flight.id] = flight.departure_delay
