"""The task, of Django's Tasks interface."""

from __future__ import annotations

from typing import Any

from django.db.models import Sum

from example_project.flights.models import DelayStatistic
from sqlqueue.tasks import task


@task
def busiest_carrier(origin: str) -> dict[str, Any]:
    """Return the carrier with the most flights from an airport, and how many. Raises LookupError if there are none."""
    carriers = DelayStatistic.objects.filter(origin=origin).values("carrier").annotate(count=Sum("flights"))
    busiest = carriers.order_by("-count", "carrier").first()
    if busiest is None:
        raise LookupError(f"no flights from {origin}")
    return {"carrier": busiest["carrier"], "flights": busiest["count"]}
