"""Blocked ranges: messages of one key that wait behind an earlier one."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue.core.keys import GROUP_LENGTH, KEY_LENGTH
from sqlqueue.database.fields import ExactField
from sqlqueue.models.topic import TOPIC_COLUMN


class BlockedRange(models.Model):
    """Every visible message of this key with low < offset <= high that has no delivery state of its own is unsettled,
    and was never dispatched. It is at or below the position, and so at or below the horizon: no message can appear in
    it any more. One row for each key, however many messages wait."""

    consumer_group = ExactField(_("group"), max_length=GROUP_LENGTH)
    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    partition = models.IntegerField(_("partition"))
    priority = models.SmallIntegerField(_("priority"), db_default=0)
    partition_key = ExactField(_("key"), max_length=KEY_LENGTH)
    low = models.BigIntegerField(_("low"), help_text=_("the range begins behind this offset; it only rises"))
    high = models.BigIntegerField(_("high"), help_text=_("the last offset of the range"))
    messages = models.BigIntegerField(_("messages"), db_default=0, help_text=_("about how many wait; for display only"))

    class Meta:
        db_table = "sqlqueue_blocked_range"
        verbose_name = _("blocked range")
        verbose_name_plural = _("blocked ranges")
        constraints = [
            # Supports: SELECT … WHERE topic, consumer_group, partition, priority [AND partition_key] (acquire, status);
            # the upserts of a settle.
            models.UniqueConstraint(
                fields=["topic", "consumer_group", "partition", "priority", "partition_key"],
                name="sqlqueue_blocked_range_key",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.consumer_group} of {self.topic}[{self.partition}] {self.partition_key}: {self.low}–{self.high}"
