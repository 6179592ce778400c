"""A topic: a named log, and its options."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue.core.keys import DEAD_LETTER_SUFFIX, TOPIC_LENGTH
from sqlqueue.database.fields import DatabaseNow, ExactField

TOPIC_COLUMN = TOPIC_LENGTH + len(DEAD_LETTER_SUFFIX)


class Topic(models.Model):
    """Created on first use from the settings. The number of partitions never changes: it decides where keys belong.

    Locking this row is what registration, reset, removal of a group and collection have in common: nothing else lets a
    watermark fall, so a collector that holds it may trust the watermarks that it has read.
    """

    name = ExactField(_("name"), max_length=TOPIC_COLUMN, primary_key=True)
    partitions = models.IntegerField(_("partitions"))
    priorities = models.IntegerField(_("priorities"), db_default=1)
    retention = models.FloatField(_("retention"), null=True, help_text=_("seconds; empty: for ever"))
    history = ExactField(_("history"), max_length=10, db_default="failures")
    paused = models.BooleanField(_("paused"), db_default=False)
    created_at = models.DateTimeField(_("created at"), db_default=DatabaseNow())

    class Meta:
        db_table = "sqlqueue_topic"
        verbose_name = _("topic")
        verbose_name_plural = _("topics")
        permissions = [("pause_topic", "Can pause and resume topics")]

    def __str__(self) -> str:
        return self.name
