"""The seats app."""

from django.apps import AppConfig


class SeatsConfig(AppConfig):
    """Seats. sqlqueue finds their handler in `consumers.py`."""

    name = "example_project.seats"
    label = "seats"
