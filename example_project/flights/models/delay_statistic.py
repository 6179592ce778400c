"""Departure delays by airport and carrier."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import F, Value
from django.db.models.functions import Coalesce, Greatest

from example_project.flights.results import DelayTotals


class DelayStatisticQuerySet(models.QuerySet["DelayStatistic"]):
    """Queries and changes of delay statistics."""

    def add(self, origin: str, carrier: str, totals: DelayTotals) -> None:
        """Add `totals` to the row of an airport and carrier, which is created if it does not exist.

        The database does the arithmetic, so that concurrent additions lose nothing.
        """
        statistic, _ = self.get_or_create(origin=origin, carrier=carrier)
        changes: dict[str, Any] = {
            "flights": F("flights") + totals.flights,
            "departed": F("departed") + totals.departed,
            "cancelled": F("cancelled") + totals.cancelled,
            "total_delay": F("total_delay") + totals.total_delay,
        }
        if totals.max_delay is not None:
            longest = Value(totals.max_delay)
            changes["max_delay"] = Greatest(Coalesce(F("max_delay"), longest), longest)
        self.filter(pk=statistic.pk).update(**changes)


class DelayStatistic(models.Model):
    """One airport's and carrier's departures; delays in minutes, early departures negative."""

    origin = models.CharField(max_length=3)
    carrier = models.CharField(max_length=2)
    flights = models.PositiveIntegerField(default=0)
    departed = models.PositiveIntegerField(default=0)
    cancelled = models.PositiveIntegerField(default=0)
    total_delay = models.IntegerField(default=0)
    max_delay = models.IntegerField(null=True, blank=True, help_text="Empty until a flight has departed.")

    objects = DelayStatisticQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["origin", "carrier"], name="flights_one_row_per_place")]

    def __str__(self) -> str:
        return f"{self.carrier} from {self.origin}"

    @property
    def mean_delay(self) -> float | None:
        """The mean departure delay in minutes, or None if no flight has departed."""
        return self.total_delay / self.departed if self.departed else None
