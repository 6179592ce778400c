"""Acked marks: up to where every group had settled a stream, and when."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue.database.fields import DatabaseNow, ExactField
from sqlqueue.models.topic import TOPIC_COLUMN


class AckedMark(models.Model):
    """Collection of a topic with `retention_from="acked"` remembers that at `marked_at` the lowest watermark over all
    groups was `offset_acked`; it deletes what such a mark covers once the mark is as old as the retention. Those of a
    topic that has the option no more are not read, and stay until it is dropped."""

    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    partition = models.IntegerField(_("partition"))
    priority = models.SmallIntegerField(_("priority"))
    offset_acked = models.BigIntegerField(_("watermark"))
    marked_at = models.DateTimeField(_("marked at"), db_default=DatabaseNow())

    class Meta:
        db_table = "sqlqueue_acked_mark"
        verbose_name = _("acked mark")
        verbose_name_plural = _("acked marks")
        constraints = [
            # Supports: SELECT … WHERE topic AND partition AND priority ORDER BY offset_acked (collect).
            models.UniqueConstraint(
                fields=["topic", "partition", "priority", "offset_acked"], name="sqlqueue_acked_mark_stream"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] acked to {self.offset_acked}"
