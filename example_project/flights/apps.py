"""The flight operations app."""

from django.apps import AppConfig


class FlightsConfig(AppConfig):
    """Flight operations: its handlers, in `consumers.py`, are found by sqlqueue."""

    name = "example_project.flights"
    label = "flights"
    default_auto_field = "django.db.models.BigAutoField"
