"""Errors of dead letters, by the hour."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue.core.fingerprint import LENGTH
from sqlqueue.core.hours import Columns
from sqlqueue.core.keys import GROUP_LENGTH
from sqlqueue.database.fields import ExactField
from sqlqueue.models.hourly import HourlyQuerySet
from sqlqueue.models.topic import TOPIC_COLUMN


class HourlyErrorQuerySet(HourlyQuerySet):
    """Queries of the errors."""

    columns = Columns(unique=("topic", "consumer_group", "hour", "fingerprint"), counts=("dead",))


class HourlyError(models.Model):
    """One kind of error that made dead letters of a group's messages within an hour: how many, and one of their
    offsets."""

    hour = models.DateTimeField(_("hour"))
    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    consumer_group = ExactField(_("group"), max_length=GROUP_LENGTH)
    fingerprint = ExactField(_("error"), max_length=LENGTH)
    dead = models.BigIntegerField(_("dead"))
    example = models.BigIntegerField(_("example's offset"), null=True)

    objects = HourlyErrorQuerySet.as_manager()

    class Meta:
        db_table = "sqlqueue_hourly_error"
        verbose_name = _("hourly error")
        verbose_name_plural = _("hourly errors")
        constraints = [
            # Supports: the upsert; SELECT … WHERE topic [AND consumer_group [AND hour]] (charts).
            models.UniqueConstraint(
                fields=["topic", "consumer_group", "hour", "fingerprint"], name="sqlqueue_hourly_error_kind"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.fingerprint} of {self.consumer_group}, {self.hour:%Y-%m-%d %H}:00"
