"""The example's seats: a request has the handler's reply."""

import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

import pytest
from django.db import connections
from django.test import Client

from example_project.flights.models import FreeSeats
from example_project.seats import reserving
from example_project.seats.reserving import reserve_seats
from example_project.seats.rules import CAPACITY
from example_project.settings import SQLQUEUE
from sqlqueue import CallFailed
from tests.consuming import QUICK, Consuming

pytestmark = pytest.mark.django_db(transaction=True)

MODULE = "example_project.seats.consumers"
FLIGHT = "UA-1545"


@pytest.fixture(autouse=True)
def _handlers(consuming: Consuming, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reserving, "TIMEOUT", 60)
    settings.SQLQUEUE = QUICK | SQLQUEUE
    settings.ROOT_URLCONF = "example_project.urls"
    sys.modules.pop(MODULE, None)
    import_module(MODULE)


def reserved_by_one() -> dict[str, Any]:
    try:
        return reserve_seats(FLIGHT, 1)
    finally:
        connections.close_all()


def test_no_seat_is_sold_twice(consuming: Consuming) -> None:
    consuming.start()
    assert reserve_seats(FLIGHT, CAPACITY[FLIGHT] - 3) == {"reserved": CAPACITY[FLIGHT] - 3, "left": 3}
    assert reserve_seats(FLIGHT, 4) == {"reserved": 0, "left": 3}
    with ThreadPoolExecutor(5) as passengers:
        replies = list(passengers.map(lambda _: reserved_by_one(), range(5)))
    assert sorted((reply["reserved"], reply["left"]) for reply in replies) == [(0, 0), (0, 0), (1, 0), (1, 1), (1, 2)]
    with pytest.raises(CallFailed, match="flight XX-1 is not on sale"):
        reserve_seats("XX-1", 1)
    assert FreeSeats.objects.get().free == 0


@pytest.mark.parametrize(
    ("flight", "seats", "code", "said"),
    [
        (FLIGHT, "2", 200, {"reserved": 2, "left": CAPACITY[FLIGHT] - 2}),
        ("XX-1", "2", 404, {"errors": {"flight": ["flight XX-1 is not on sale"]}}),
        (FLIGHT, "0", 400, {"errors": {"seats": ["Ensure this value is greater than or equal to 1."]}}),
    ],
)
def test_a_passenger_is_told_what_has_become_of_the_request(
    consuming: Consuming, client: Client, flight: str, seats: str, code: int, said: dict[str, Any]
) -> None:
    consuming.start()
    response = client.post("/seats/", {"flight": flight, "seats": seats})
    assert (response.status_code, response.json()) == (code, said)


def test_without_a_consumer_the_passenger_is_told_so(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reserving, "TIMEOUT", 0.1)
    response = client.post("/seats/", {"flight": FLIGHT, "seats": "1"})
    assert (response.status_code, response.json()["errors"]["__all__"]) == (
        503,
        ["no reply in time: is runconsumers running?"],
    )
    assert not FreeSeats.objects.exists()
