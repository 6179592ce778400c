"""The flight operations app."""

from django.apps import AppConfig


class FlightsConfig(AppConfig):
    """Flight operations. sqlqueue finds its handlers in `consumers.py`."""

    name = "example_project.flights"
    label = "flights"
    default_auto_field = "django.db.models.BigAutoField"
