"""The Django app of batches."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class BatchesConfig(AppConfig):
    """Registers the effect, by which members are followed, and the checks. Opens no connection."""

    name = "sqlqueue.contrib.batches"
    label = "sqlqueue_batches"
    verbose_name = _("Batches")
    default_auto_field = "django.db.models.BigAutoField"
    beside_the_log = True  # its tables are on the queue's databases

    def ready(self) -> None:
        """Register them."""
        from sqlqueue.contrib.batches.effect import MEMBERS  # the import registers the check
        from sqlqueue.core.effects import register

        register(MEMBERS)
