"""The payments app."""

from django.apps import AppConfig


class PaymentsConfig(AppConfig):
    """Payments. sqlqueue finds their handlers in `consumers.py`."""

    name = "example_project.payments"
    label = "payments"
