"""The gate that publishers hold open while their offsets are not yet visible."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue.database.entry import SLOTS
from sqlqueue.database.gate import DUTIES


class PublishGate(models.Model):
    """A few hundred fixed rows. Every publish on MySQL holds one in share mode until it commits; see the horizon. Some
    more, on every database, are duties that one process at a time may have."""

    slot = models.IntegerField(_("slot"), primary_key=True)

    class Meta:
        db_table = "sqlqueue_publish_gate"
        verbose_name = _("publish gate")
        verbose_name_plural = _("publish gate")

    def __str__(self) -> str:
        return str(self.slot)


def fill(using: str, **kwargs: Any) -> None:
    """Make sure that all slots exist: after every migrate, and after a test has flushed the tables."""
    gates = PublishGate.objects.using(using)
    missing = {*DUTIES, *range(SLOTS)}.difference(gates.values_list("slot", flat=True))
    gates.bulk_create([PublishGate(slot=slot) for slot in sorted(missing)], ignore_conflicts=True)
