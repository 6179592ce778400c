from django.apps import AppConfig


class SoakConfig(AppConfig):
    """The handlers of a soak run and their table; installed in its processes only."""

    name = "tests.soak"
    label = "soak"
