"""The groups' results, read from the tables."""

from __future__ import annotations

from collections import Counter

from example_project.flights.dead_letters import DeadLetter
from example_project.flights.models import Aircraft, Alert, DelayStatistic
from example_project.flights.results import AircraftHistory, DelayTotals, FlightResults
from example_project.flights.rules import TOPIC
from sqlqueue.models import Message


def found_results(settled: dict[str, int], dead_letters: list[DeadLetter]) -> FlightResults:
    """Return the results in the tables, with the settled counts and dead letters that the caller has read."""
    ids = Message.objects.filter(topic=TOPIC).values_list("message_id", flat=True)
    return FlightResults(
        messages=dict(Counter(ids.iterator(chunk_size=10_000))),
        settled=settled,
        aircraft={
            aircraft.tail_number: AircraftHistory(aircraft.legs, aircraft.last_flight, aircraft.digest)
            for aircraft in Aircraft.objects.iterator()
        },
        delays={
            (row.origin, row.carrier): DelayTotals(
                row.flights, row.departed, row.cancelled, row.total_delay, row.max_delay
            )
            for row in DelayStatistic.objects.iterator()
        },
        alerts=dict(Alert.objects.values_list("flight", "delay").iterator()),
        dead_letters=_by_group_and_flight(dead_letters),
    )


def _by_group_and_flight(dead_letters: list[DeadLetter]) -> dict[tuple[str, str], str]:
    """Return the reasons by group and flight; a second dead letter of one flight and group adds its reason."""
    reasons: dict[tuple[str, str], str] = {}
    for dead_letter in dead_letters:
        key = (dead_letter.group, dead_letter.flight)
        reasons[key] = f"{reasons[key]}, {dead_letter.reason}" if key in reasons else dead_letter.reason
    return reasons
