"""The reports app."""

from django.apps import AppConfig


class ReportsConfig(AppConfig):
    """Reports on the flights. sqlqueue finds its handlers in `consumers.py`."""

    name = "example_project.reports"
    label = "reports"
