"""Aircraft and the flights they have made, in order."""

from __future__ import annotations

from django.db import models

from example_project.flights.digest import EMPTY_DIGEST, next_digest


class AircraftQuerySet(models.QuerySet["Aircraft"]):
    """Queries and changes of aircraft."""

    def add_flight(self, tail_number: str, flight_id: str) -> None:
        """Add a flight to an aircraft's history.

        It reads, then writes, without a lock: the caller must add an aircraft's flights one at a time.
        """
        aircraft = self.filter(tail_number=tail_number).first() or Aircraft(tail_number=tail_number)
        aircraft.legs += 1
        aircraft.last_flight = flight_id
        aircraft.digest = next_digest(aircraft.digest, flight_id)
        aircraft.save()


class Aircraft(models.Model):
    """One aircraft, by its tail number."""

    tail_number = models.CharField(max_length=10, unique=True)
    legs = models.PositiveIntegerField(default=0)
    last_flight = models.CharField(max_length=40)
    digest = models.CharField(
        max_length=64, default=EMPTY_DIGEST, help_text="Chained over the aircraft's flights in their order."
    )

    objects = AircraftQuerySet.as_manager()

    class Meta:
        verbose_name_plural = "aircraft"

    def __str__(self) -> str:
        return self.tail_number
