"""The seats that can still be reserved."""

from __future__ import annotations

from django.db import models


class FreeSeats(models.Model):
    """A flight's free seats."""

    flight = models.CharField(max_length=40, unique=True)
    free = models.PositiveIntegerField()

    class Meta:
        verbose_name_plural = "free seats"

    def __str__(self) -> str:
        return f"{self.flight}: {self.free}"
