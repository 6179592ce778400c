"""Topics: named logs, their options, and the layouts by which their keys are spread over partitions."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue.core.keys import DEAD_LETTER_SUFFIX, TOPIC_LENGTH
from sqlqueue.database.fields import DatabaseNow, ExactField

TOPIC_COLUMN = TOPIC_LENGTH + len(DEAD_LETTER_SUFFIX)
DATABASES_COLUMN = 2000


class Topic(models.Model):
    """Created on first use from the settings. The number of partitions never changes: it is the first epoch's. Nor
    do the databases that it is on.

    `retention` and `history` are the values in force. At each start of `runconsumers` they are set from the settings,
    except those that an operator has overridden.

    Registration, moves and removal of a group and collection lock this row: only they let a watermark fall, so the
    watermarks that a collector reads under the lock hold.
    """

    name = ExactField(_("name"), max_length=TOPIC_COLUMN, primary_key=True)
    partitions = models.IntegerField(_("partitions"))
    priorities = models.IntegerField(_("priorities"), db_default=1)
    retention = models.FloatField(_("retention"), null=True, help_text=_("seconds; empty: for ever"))
    history = ExactField(_("history"), max_length=10, db_default="failures")
    retention_overridden = models.BooleanField(_("retention overridden"), db_default=False)
    history_overridden = models.BooleanField(_("history overridden"), db_default=False)
    paused = models.BooleanField(_("paused"), db_default=False)
    purged_to = models.BigIntegerField(
        _("purged to"), db_default=0, help_text=_("up to this offset nothing is retained that no group needs")
    )
    collected_to = models.BigIntegerField(
        _("collected to"), db_default=0, help_text=_("the highest offset that was collected")
    )
    databases = ExactField(
        _("databases"),
        max_length=DATABASES_COLUMN,
        db_default="",
        help_text=_("over which its keys are spread; empty: this one alone"),
    )
    created_at = models.DateTimeField(_("created at"), db_default=DatabaseNow())

    class Meta:
        db_table = "sqlqueue_topic"
        verbose_name = _("topic")
        verbose_name_plural = _("topics")
        permissions = [("pause_topic", "Can pause and resume topics"), ("purge_topic", "Can purge topics")]

    def __str__(self) -> str:
        return self.name

    @property
    def overridden(self) -> tuple[str, ...]:
        """The names of the options that an operator has overridden."""
        flags = {"retention": self.retention_overridden, "history": self.history_overridden}
        return tuple(option for option, overridden in flags.items() if overridden)


class Overview(Topic):
    """A proxy without a table: it lists the overview page in the admin's index, and has its permission."""

    class Meta:
        proxy = True
        default_permissions = ("view",)
        verbose_name = _("overview")
        verbose_name_plural = _("overview")


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
        constraints = [
            # Supports: SELECT … WHERE topic ORDER BY generation (what holds, what held).
            models.UniqueConstraint(fields=["topic", "generation"], name="sqlqueue_layout_generation"),
        ]


class EpochSlot(models.Model):
    """The epoch that a sixty-fourth of a topic's keys is published into. Publishers ask, and lock, these rows only
    while a layout is turning; MySQL only."""

    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    slot = models.SmallIntegerField(_("slot"))
    epoch = models.IntegerField(_("epoch"))

    class Meta:
        db_table = "sqlqueue_epoch_slot"
        constraints = [
            models.UniqueConstraint(fields=["topic", "slot"], name="sqlqueue_epoch_slot_topic"),
        ]


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
        constraints = [
            # Supports: SELECT … WHERE topic AND partition AND priority ORDER BY offset_acked (collect).
            models.UniqueConstraint(
                fields=["topic", "partition", "priority", "offset_acked"], name="sqlqueue_acked_mark_stream"
            ),
        ]
