"""Layouts of topics: which partitions a topic's keys are spread over, and since when."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue.database.fields import DatabaseNow, ExactField
from sqlqueue.models.topic import TOPIC_COLUMN


class Layout(models.Model):
    """What a topic's layout is from one generation of the publish gate on. A topic without one has its first epoch
    alone: epoch 0, the partitions of its own row from number 0 on.

    An epoch owns the partition numbers base … base + partitions - 1 for ever: numbers are never used again. The phase
    is "turning" while publishers go over from the epoch before it, slot by slot, and "steady" otherwise. end: of an
    epoch that is closed, the offset at or below which all of its messages are, and visible; there will be no more.
    retired_at: since then no group needs the epoch, and the log holds none of its messages. Nothing else of a row ever
    changes.
    """

    STEADY, TURNING = "steady", "turning"

    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    generation = models.IntegerField(_("generation"))
    epoch = models.IntegerField(_("epoch"))
    phase = ExactField(_("phase"), max_length=10)
    partitions = models.IntegerField(_("partitions"))
    base = models.IntegerField(_("base"))
    end = models.BigIntegerField(_("end"), null=True)
    retired_at = models.DateTimeField(_("retired at"), null=True)
    created_at = models.DateTimeField(_("created at"), db_default=DatabaseNow())

    class Meta:
        db_table = "sqlqueue_layout"
        verbose_name = _("layout")
        verbose_name_plural = _("layouts")
        constraints = [
            # Supports: SELECT … WHERE topic ORDER BY generation (what holds, what held).
            models.UniqueConstraint(fields=["topic", "generation"], name="sqlqueue_layout_generation"),
        ]

    def __str__(self) -> str:
        return f"{self.topic}, generation {self.generation}"


class EpochSlot(models.Model):
    """The epoch that a sixty-fourth of a topic's keys is published into. Publishers ask, and lock, these rows only
    while a layout is turning; MySQL only."""

    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    slot = models.SmallIntegerField(_("slot"))
    epoch = models.IntegerField(_("epoch"))

    class Meta:
        db_table = "sqlqueue_epoch_slot"
        verbose_name = _("slot of an epoch")
        verbose_name_plural = _("slots of epochs")
        constraints = [
            models.UniqueConstraint(fields=["topic", "slot"], name="sqlqueue_epoch_slot_topic"),
        ]

    def __str__(self) -> str:
        return f"{self.topic}, slot {self.slot}"
