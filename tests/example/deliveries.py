"""Deliveries for handlers that are called directly."""

from dataclasses import dataclass, field
from typing import Any

from example_project.flights.data import Flight


@dataclass
class FakeDelivery:
    """What the example's handlers read of a delivery."""

    payload: dict[str, Any]
    key: str = ""
    headers: dict[str, Any] = field(default_factory=dict)
    attempt: int = 1


def delivery_of(flight: Flight) -> Any:
    """Return a flight's first delivery."""
    return FakeDelivery(flight.payload(), key=flight.tail_number or "")
