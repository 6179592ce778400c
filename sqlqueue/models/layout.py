"""Layouts of topics: which partitions a topic's keys are spread over, and since when."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue.core.keys import GROUP_LENGTH
from sqlqueue.core.setting.shards import SHARD_LENGTH
from sqlqueue.database.fields import DatabaseNow, ExactField
from sqlqueue.models.topic import SHARDS_COLUMN, TOPIC_COLUMN


class Layout(models.Model):
    """What a topic's layout is from one generation of the publish gate on. Rows are only ever inserted. A topic without
    one has its first epoch alone: epoch 0, the partitions of its own row from number 0 on.

    An epoch owns the partition numbers base … base + partitions - 1 for ever: numbers are never used again. The phase
    is "turning" while publishers go over from the epoch before it, slot by slot, and "steady" otherwise.

    `shards`: the lists of shards that the topic's keys have been spread over, oldest first, the last one by this epoch,
    as core.shards.lists_text() writes them; empty for a topic whose shards were never changed. `shard`: the name that
    this database has there.
    """

    STEADY, TURNING = "steady", "turning"

    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    generation = models.IntegerField(_("generation"))
    epoch = models.IntegerField(_("epoch"))
    phase = ExactField(_("phase"), max_length=10)
    partitions = models.IntegerField(_("partitions"))
    base = models.IntegerField(_("base"))
    shards = ExactField(_("shards"), max_length=SHARDS_COLUMN, db_default="")
    shard = ExactField(_("shard"), max_length=SHARD_LENGTH, db_default="")
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


class EpochEnd(models.Model):
    """Where an epoch that is closed ends in this database: all of its messages here are visible, at or below this
    offset, and there will be no more. `retired_at`: no group needs it and the log holds none of its messages any
    more."""

    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    epoch = models.IntegerField(_("epoch"))
    end = models.BigIntegerField(_("end"))
    retired_at = models.DateTimeField(_("retired at"), null=True)

    class Meta:
        db_table = "sqlqueue_epoch_end"
        verbose_name = _("end of an epoch")
        verbose_name_plural = _("ends of epochs")
        constraints = [
            models.UniqueConstraint(fields=["topic", "epoch"], name="sqlqueue_epoch_end_topic"),
        ]

    def __str__(self) -> str:
        return f"{self.topic}, epoch {self.epoch}"


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


class EpochGrant(models.Model):
    """What a database has granted to a group: to start, on another shard, the epochs of this version of the topic's
    list of shards; for the group has settled all that came here before. `revoking`: 0, or the number of the process
    that takes it back, before a watermark falls here."""

    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    consumer_group = ExactField(_("group"), max_length=GROUP_LENGTH)
    shard = ExactField(_("shard"), max_length=SHARD_LENGTH)
    version = models.IntegerField(_("version"))
    revoking = models.BigIntegerField(_("revoking"), db_default=0)

    class Meta:
        db_table = "sqlqueue_epoch_grant"
        verbose_name = _("grant of an epoch")
        verbose_name_plural = _("grants of epochs")
        constraints = [
            models.UniqueConstraint(
                fields=["topic", "consumer_group", "shard", "version"], name="sqlqueue_epoch_grant_shard"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.consumer_group} of {self.topic}, version {self.version} on {self.shard}"


class EpochStart(models.Model):
    """Whether a group may start here the epochs of a version of the topic's list of shards: `granted` names the other
    shards, of earlier lists, that have granted it. `revoked`: how often grants were taken back, which makes one that
    was asked for before count no more."""

    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    consumer_group = ExactField(_("group"), max_length=GROUP_LENGTH)
    version = models.IntegerField(_("version"))
    revoked = models.IntegerField(_("revoked"), db_default=0)
    granted = ExactField(_("granted"), max_length=SHARDS_COLUMN, db_default="")

    class Meta:
        db_table = "sqlqueue_epoch_start"
        verbose_name = _("start of an epoch")
        verbose_name_plural = _("starts of epochs")
        constraints = [
            models.UniqueConstraint(fields=["topic", "consumer_group", "version"], name="sqlqueue_epoch_start_group"),
        ]

    def __str__(self) -> str:
        return f"{self.consumer_group} of {self.topic}, version {self.version}"
