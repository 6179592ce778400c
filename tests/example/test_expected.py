"""The direct computation, held against results worked out by hand."""

from hashlib import sha256

from example_project.flights.expected import expected_results
from example_project.flights.results import AircraftHistory, DelayTotals
from tests.example.flights import cancelled, make_flight

FLIGHTS = [
    make_flight(number=1, tail_number="N1", departure_delay=5),
    make_flight(number=2, tail_number="N2", departure_delay=-3),
    make_flight(number=3, tail_number="N1", departure_delay=121),
    cancelled(number=4, tail_number="N1"),
    cancelled(number=5, tail_number=None),
    make_flight(number=6, tail_number="N2", departure_delay=120, origin="JFK"),
    cancelled(number=7, tail_number="N3", origin="JFK", carrier="B6"),
]


def chained(*identifications: str) -> str:
    digest = ""
    for identification in identifications:
        digest = sha256(f"{digest} {identification}".encode()).hexdigest()
    return digest


def test_aircraft_have_their_flights_in_order() -> None:
    first, second, third = "UA1-2013-01-01-EWR", "UA3-2013-01-01-EWR", "UA4-2013-01-01-EWR"
    aircraft = expected_results(FLIGHTS).aircraft
    assert aircraft["N1"] == AircraftHistory(legs=3, last_flight=third, digest=chained(first, second, third))
    assert set(aircraft) == {"N1", "N2", "N3"}


def test_a_change_of_order_a_loss_and_a_double_change_the_digest() -> None:
    one, two, three = (make_flight(number=number) for number in (1, 2, 3))
    sequences = [[one, two, three], [one, three, two], [one, three], [one, two, two, three]]
    assert len({expected_results(sequence).aircraft["N1"].digest for sequence in sequences}) == len(sequences)


def test_delays_are_added_by_airport_and_carrier() -> None:
    assert expected_results(FLIGHTS).delays == {
        ("EWR", "UA"): DelayTotals(flights=5, departed=3, cancelled=2, total_delay=123, max_delay=121),
        ("JFK", "UA"): DelayTotals(flights=1, departed=1, cancelled=0, total_delay=120, max_delay=120),
        ("JFK", "B6"): DelayTotals(flights=1, departed=0, cancelled=1, total_delay=0, max_delay=None),
    }


def test_only_departures_over_two_hours_late_are_alerted() -> None:
    assert expected_results(FLIGHTS).alerts == {"UA3-2013-01-01-EWR": 121}


def test_failing_flights_are_expected_among_the_dead_letters() -> None:
    assert expected_results(FLIGHTS).dead_letters == {
        ("alerts", "UA4-2013-01-01-EWR"): "never departed",
        ("alerts", "UA5-2013-01-01-EWR"): "no tail number",
        ("alerts", "B67-2013-01-01-JFK"): "never departed",
    }


def test_every_group_has_every_flight_to_settle() -> None:
    results = expected_results(FLIGHTS)
    assert results.settled == {"aircraft": 7, "delays": 7, "alerts": 7}
    assert len(results.messages) == 7
