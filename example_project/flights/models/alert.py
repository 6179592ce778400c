"""Alerts about single flights."""

from __future__ import annotations

from django.db import models


class Alert(models.Model):
    """A flight that departed late; a flight has one alert at most."""

    flight = models.CharField(max_length=40, unique=True)
    delay = models.IntegerField(help_text="Departure delay in minutes.")
    reason = models.CharField(max_length=100)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.flight}: {self.reason}"
