"""The horizon that one consumer of many has found, for the others."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class SharedHorizon(models.Model):
    """A single row, once a database has had many consumers; see database.horizon."""

    id = models.SmallIntegerField(primary_key=True)
    value = models.BigIntegerField(_("horizon"))

    class Meta:
        db_table = "sqlqueue_horizon"
        verbose_name = _("shared horizon")
        verbose_name_plural = _("shared horizon")

    def __str__(self) -> str:
        return str(self.value)
