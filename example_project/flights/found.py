"""What the groups have really made of the flights, read from the tables."""

from __future__ import annotations

from collections import Counter

from example_project.flights.dead_letters import DeadLetter
from example_project.flights.models import Aircraft, Alert, DelayStatistic
from example_project.flights.results import AircraftHistory, DelayTotals, FlightResults
from example_project.flights.rules import TOPIC
from sqlqueue.models import Message


def found_results(settled: dict[str, int], dead_letters: list[DeadLetter]) -> FlightResults:
    """Return the results in the tables, with what is known already of the settled flights and the dead letters."""
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
    """Return the reasons by group and flight; a flight given up twice by a group has both, which nobody expects."""
    reasons: dict[tuple[str, str], str] = {}
    for letter in dead_letters:
        place = (letter.group, letter.flight)
        reasons[place] = f"{reasons[place]}, {letter.reason}" if place in reasons else letter.reason
    return reasons
