"""What each handler does with a flight."""

import pytest

from example_project.flights.consumers import NeverDeparted, add_delays, alert_long_delays, follow_aircraft
from example_project.flights.expected import expected_results
from example_project.flights.models import Aircraft, Alert, DelayStatistic
from sqlqueue import Reject
from tests.example.deliveries import delivery_of
from tests.example.flights import cancelled, make_flight

pytestmark = pytest.mark.django_db


def test_an_aircraft_is_followed_through_its_flights() -> None:
    flights = [make_flight(number=number) for number in (1, 2, 3)]
    for flight in flights:
        follow_aircraft(delivery_of(flight))
    aircraft = Aircraft.objects.get()
    expected = expected_results(flights).aircraft["N1"]
    assert (aircraft.legs, aircraft.last_flight, aircraft.digest) == (3, flights[-1].id, expected.digest)


def test_a_flight_without_a_tail_number_moves_no_aircraft() -> None:
    follow_aircraft(delivery_of(cancelled(tail_number=None)))
    assert not Aircraft.objects.exists()


def test_delays_of_several_batches_add_up() -> None:
    add_delays([delivery_of(cancelled(number=1))])
    assert DelayStatistic.objects.get().max_delay is None
    add_delays([delivery_of(make_flight(number=2, departure_delay=delay)) for delay in (-4, 9)])
    add_delays([delivery_of(make_flight(number=3, departure_delay=7)), delivery_of(make_flight(origin="JFK"))])
    statistic = DelayStatistic.objects.get(origin="EWR")
    assert (statistic.flights, statistic.departed, statistic.cancelled) == (4, 3, 1)
    assert (statistic.total_delay, statistic.max_delay) == (12, 9)
    assert statistic.mean_delay == 4
    assert DelayStatistic.objects.count() == 2


def test_early_departures_only_have_a_negative_longest_delay() -> None:
    add_delays([delivery_of(make_flight(departure_delay=delay)) for delay in (-9, -4)])
    assert DelayStatistic.objects.get().max_delay == -4


def test_a_long_delay_is_alerted_once_however_often_it_is_delivered() -> None:
    late = delivery_of(make_flight(departure_delay=121))
    alert_long_delays(late)
    alert_long_delays(late)
    assert Alert.objects.get().delay == 121


def test_two_hours_are_no_long_delay() -> None:
    alert_long_delays(delivery_of(make_flight(departure_delay=120)))
    assert not Alert.objects.exists()


def test_a_flight_without_a_tail_number_is_rejected() -> None:
    with pytest.raises(Reject, match=r"^no tail number$"):
        alert_long_delays(delivery_of(cancelled(tail_number=None)))


def test_a_flight_that_never_departed_fails() -> None:
    with pytest.raises(NeverDeparted, match=r"^UA1-2013-01-01-EWR never departed$"):
        alert_long_delays(delivery_of(cancelled()))
