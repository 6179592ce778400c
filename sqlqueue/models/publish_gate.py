"""The publish gate, which publishers lock while their offsets are not visible yet."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue.database.gate import DUTIES
from sqlqueue.database.insert_sql import SLOTS


class PublishGate(models.Model):
    """A few hundred fixed rows. Every publish on MySQL locks one in share mode until it commits; see database.horizon.
    A few more, on every database, are locked by exclusive tasks."""

    slot = models.IntegerField(_("slot"), primary_key=True)
    generation = models.IntegerField(
        _("generation"), db_default=0, help_text=_("of the topics' layouts; who publishes by another one is refused")
    )

    class Meta:
        db_table = "sqlqueue_publish_gate"
        verbose_name = _("publish gate")
        verbose_name_plural = _("publish gate")

    def __str__(self) -> str:
        return str(self.slot)


def fill(using: str, **kwargs: Any) -> None:
    """Add missing rows: after every migrate, and after a test has flushed the tables."""
    gates = PublishGate.objects.using(using)
    missing = {*DUTIES, *range(SLOTS)}.difference(gates.values_list("slot", flat=True))
    gates.bulk_create([PublishGate(slot=slot) for slot in sorted(missing)], ignore_conflicts=True)
