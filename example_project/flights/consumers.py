"""The handlers of flight operations: three groups that read the same topic."""

from __future__ import annotations

from collections.abc import Sequence

from example_project.flights.data import published_flight_id
from example_project.flights.delays import delays_by_airport_and_carrier
from example_project.flights.models import Aircraft, Alert, DelayStatistic
from example_project.flights.rules import LONG_DELAY_MINUTES, NEVER_DEPARTED, NO_TAIL_NUMBER, TOPIC
from sqlqueue import Delivery, Reject, consumer


class NeverDeparted(Exception):
    """The flight was cancelled: there is no departure to judge."""


@consumer(TOPIC, group="aircraft", ordering="key", atomic=True)
def follow_aircraft(delivery: Delivery) -> None:
    """Add the flight to its aircraft's history.

    Ordered by key: an aircraft's flights come one after another. Atomic: the history is written once for each flight.
    """
    flight = delivery.payload
    if flight["tail_number"] is not None:
        Aircraft.objects.add_flight(flight["tail_number"], published_flight_id(flight))


@consumer(TOPIC, group="delays", batch=True, atomic=True, batch_size=500)
def add_delays(deliveries: Sequence[Delivery]) -> None:
    """Add a batch of flights to the delay statistics, in one transaction with the batch's offset."""
    totals = delays_by_airport_and_carrier(delivery.payload for delivery in deliveries)
    for origin, carrier in sorted(totals):  # always the same order, so that two batches cannot deadlock
        DelayStatistic.objects.add(origin, carrier, totals[origin, carrier])


@consumer(TOPIC, group="alerts", max_attempts=3, backoff=0)
def alert_long_delays(delivery: Delivery) -> None:
    """Alert departures that are over two hours late.

    A flight without a tail number is rejected at once; one that never departed fails and is retried, up to three times.
    """
    flight = delivery.payload
    if flight["tail_number"] is None:
        raise Reject(NO_TAIL_NUMBER)
    delay = flight["departure_delay"]
    if delay is None:
        raise NeverDeparted(f"{published_flight_id(flight)} {NEVER_DEPARTED}")
    if delay > LONG_DELAY_MINUTES:
        # Not atomic, so it may run twice for a flight: get_or_create adds one alert.
        Alert.objects.get_or_create(
            flight=published_flight_id(flight), defaults={"delay": delay, "reason": f"departed {delay} minutes late"}
        )
