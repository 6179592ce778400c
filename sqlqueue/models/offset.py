"""Offset rows: position, watermark and claim of a group in a partition."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue.core.keys import GROUP_LENGTH
from sqlqueue.database.fields import DatabaseNow, ExactField
from sqlqueue.models.topic import TOPIC_COLUMN


class Offset(models.Model):
    """Position, watermark (`offset_acked`) and claim of (group, topic, partition, priority), and the fencing token
    that a writer must hold. A settle without failures writes only this row."""

    consumer_group = ExactField(_("group"), max_length=GROUP_LENGTH)
    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    partition = models.IntegerField(_("partition"))
    priority = models.SmallIntegerField(_("priority"), db_default=0)
    position = models.BigIntegerField(_("position"))
    offset_acked = models.BigIntegerField(_("watermark"))
    claimed_to = models.BigIntegerField(_("claimed to"))
    fencing_token = models.BigIntegerField(_("fencing token"))
    updated_at = models.DateTimeField(_("updated at"), db_default=DatabaseNow())

    class Meta:
        db_table = "sqlqueue_offset"
        verbose_name = _("offset")
        verbose_name_plural = _("offsets")
        constraints = [
            # Supports: SELECT … WHERE topic [AND consumer_group [AND partition IN]] (acquire, collect, status).
            models.UniqueConstraint(
                fields=["topic", "consumer_group", "partition", "priority"], name="sqlqueue_offset_priority"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.consumer_group} of {self.topic}[{self.partition}] at {self.position}"
