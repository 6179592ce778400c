"""The reports app."""

from django.apps import AppConfig


class ReportsConfig(AppConfig):
    """Reports on the flights. sqlqueue finds its periodic job in `consumers.py`."""

    name = "example_project.reports"
    label = "reports"
