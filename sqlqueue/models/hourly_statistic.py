"""Results of the analytics, by the hour."""

from __future__ import annotations

from datetime import datetime

from django.db import models
from django.db.models import Max
from django.utils.translation import gettext_lazy as _

from sqlqueue.core.hours import Columns
from sqlqueue.core.keys import GROUP_LENGTH, KEY_LENGTH
from sqlqueue.database.fields import ExactField
from sqlqueue.models.hourly import HourlyQuerySet
from sqlqueue.models.topic import TOPIC_COLUMN


class HourlyStatisticQuerySet(HourlyQuerySet):
    """Queries of the statistics."""

    columns = Columns(
        unique=("topic", "consumer_group", "hour"),
        counts=("published", "acked", "retried", "postponed", "dead"),
        figures=("end_to_end_p50", "end_to_end_p95", "end_to_end_p99"),
        progress=("last_offset", "last_receipt"),
    )

    def reached(self, topic: str) -> tuple[int, datetime | None]:
        """Return the offset of the last message in a topic's rows, and their last hour."""
        found = self.filter(topic=topic).aggregate(offset=Max("last_offset"), hour=Max("hour"))
        return found["offset"] or 0, found["hour"]


class HourlyStatistic(models.Model):
    """An hour of a topic: messages published (`consumer_group` is empty), or their outcomes in a group. Times are in
    seconds."""

    hour = models.DateTimeField(_("hour"))
    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    consumer_group = ExactField(_("group"), max_length=GROUP_LENGTH, db_default="")
    published = models.BigIntegerField(_("published"), db_default=0)
    key_count = models.BigIntegerField(_("keys"), db_default=0)
    top_key = ExactField(_("busiest key"), max_length=KEY_LENGTH, db_default="")
    top_key_messages = models.BigIntegerField(_("messages of the busiest key"), db_default=0)
    acked = models.BigIntegerField(_("acked"), db_default=0)
    retried = models.BigIntegerField(_("retried"), db_default=0)
    postponed = models.BigIntegerField(_("postponed"), db_default=0)
    dead = models.BigIntegerField(_("dead"), db_default=0)
    redelivered = models.BigIntegerField(_("redelivered"), db_default=0)
    handler_p50 = models.FloatField(_("handler, median"), null=True)
    handler_p95 = models.FloatField(_("handler, 95 %"), null=True)
    handler_p99 = models.FloatField(_("handler, 99 %"), null=True)
    end_to_end_p50 = models.FloatField(_("end to end, median"), null=True)
    end_to_end_p95 = models.FloatField(_("end to end, 95 %"), null=True)
    end_to_end_p99 = models.FloatField(_("end to end, 99 %"), null=True)
    last_offset = models.BigIntegerField(_("last offset"), db_default=0)
    last_receipt = models.BigIntegerField(_("last receipt"), db_default=0)

    objects = HourlyStatisticQuerySet.as_manager()

    class Meta:
        db_table = "sqlqueue_hourly_statistic"
        verbose_name = _("hourly statistic")
        verbose_name_plural = _("hourly statistics")
        constraints = [
            # Supports: the upsert; SELECT … WHERE topic [AND consumer_group [AND hour]] (charts, where to go on).
            models.UniqueConstraint(fields=["topic", "consumer_group", "hour"], name="sqlqueue_hourly_statistic_hour"),
        ]

    def __str__(self) -> str:
        return f"{self.topic} {self.consumer_group} {self.hour:%Y-%m-%d %H}:00"
