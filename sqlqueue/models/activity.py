"""The activity of a group, minute by minute."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue.core.keys import GROUP_LENGTH
from sqlqueue.database.fields import ExactField
from sqlqueue.models.topic import TOPIC_COLUMN


class Activity(models.Model):
    """How many deliveries a group settled in one minute, how many messages its filter left out, and how far behind it
    was. Kept for a week, for charts and rates; the engine decides nothing by it."""

    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    consumer_group = ExactField(_("group"), max_length=GROUP_LENGTH)
    minute = models.DateTimeField(_("minute"))
    acked = models.BigIntegerField(_("acked"), db_default=0)
    retried = models.BigIntegerField(_("retried"), db_default=0)
    postponed = models.BigIntegerField(_("postponed"), db_default=0)
    dead = models.BigIntegerField(_("dead"), db_default=0)
    filtered = models.BigIntegerField(
        _("filtered"), db_default=0, help_text=_("acked without a handler, by its filter")
    )
    seconds = models.FloatField(_("handlers' time"), db_default=0, help_text=_("seconds"))
    lag = models.BigIntegerField(_("lag"), null=True, help_text=_("messages; empty: not measured"))

    class Meta:
        db_table = "sqlqueue_activity"
        verbose_name = _("activity")
        verbose_name_plural = _("activity")
        constraints = [
            # Supports: the additions of every process; SELECT … WHERE topic AND consumer_group AND minute > ? (charts).
            models.UniqueConstraint(fields=["topic", "consumer_group", "minute"], name="sqlqueue_activity_minute"),
        ]
        indexes = [
            # Supports: SELECT … WHERE minute >= ? (rates of all groups), WHERE minute < ? LIMIT (deleting old rows).
            models.Index(fields=["minute"], name="sqlqueue_activity_recent"),
        ]

    def __str__(self) -> str:
        return f"{self.consumer_group} of {self.topic} at {self.minute}"
