"""The refunds app."""

from django.apps import AppConfig


class RefundsConfig(AppConfig):
    """Refunds. sqlqueue finds their handlers in `consumers.py`."""

    name = "example_project.refunds"
    label = "refunds"
