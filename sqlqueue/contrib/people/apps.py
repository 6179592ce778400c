"""The Django app of people's work."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class PeopleConfig(AppConfig):
    """Registers the effect, by which HandOver makes work items, and the checks. Opens no connection."""

    name = "sqlqueue.contrib.people"
    label = "sqlqueue_people"
    verbose_name = _("People's work")
    default_auto_field = "django.db.models.BigAutoField"
    beside_the_log = True  # its tables are on the queue's databases

    def ready(self) -> None:
        """Register them."""
        from sqlqueue.contrib.people import checks  # noqa: F401  the import registers them
        from sqlqueue.contrib.people.effect import WORK_ITEMS
        from sqlqueue.core.effects import register

        register(WORK_ITEMS)
