"""The handler: the only place where seats are reserved."""

from __future__ import annotations

from typing import Any

from example_project.flights.models import FreeSeats
from example_project.seats.rules import CAPACITY, TOPIC
from sqlqueue import Delivery, Reject, consumer


@consumer(TOPIC, ordering="key", atomic=True)
def reserve(delivery: Delivery) -> dict[str, Any]:
    """Reserve all the seats that are wanted, or none if fewer are free; reply how many are left.

    Ordered by key: a flight's requests come one after another, so that it reads and writes without a lock and sells no
    seat twice.
    """
    flight, wanted = delivery.payload["flight"], delivery.payload["seats"]
    if flight not in CAPACITY:
        raise Reject(f"flight {flight} is not on sale")
    seats, _ = FreeSeats.objects.get_or_create(flight=flight, defaults={"free": CAPACITY[flight]})
    reserved = wanted if wanted <= seats.free else 0
    seats.free -= reserved
    seats.save()
    return {"reserved": reserved, "left": seats.free}
