"""Asking for seats, and waiting for the reply."""

from __future__ import annotations

from typing import Any

from example_project.seats.rules import TOPIC
from sqlqueue import call

TIMEOUT = 10  # seconds


def reserve_seats(flight: str, seats: int) -> dict[str, Any]:
    """Return {"reserved": the seats or 0, "left": how many are free now}.

    Raises CallFailed for a flight that is not on sale, and TimeoutError if there is no reply in time: what no consumer
    has begun by then expires.
    """
    reply: dict[str, Any] = call(
        TOPIC, {"flight": flight, "seats": seats}, key=flight, timeout=TIMEOUT, expires=TIMEOUT
    )
    return reply
