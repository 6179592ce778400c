"""When each duty was begun that one process of all does now and then."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue.database.fields import ExactField


class Duty(models.Model):
    """A row for each such duty: see log.duties."""

    name = ExactField(_("name"), max_length=30, primary_key=True)
    began_at = models.DateTimeField(_("began at"))

    class Meta:
        db_table = "sqlqueue_duty"
        verbose_name = _("duty")
        verbose_name_plural = _("duties")

    def __str__(self) -> str:
        return self.name
