"""Batches: messages that are followed as one group of work, and what is called once they are settled."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue.core.keys import GROUP_LENGTH
from sqlqueue.core.logfmt import printable
from sqlqueue.database.fields import DatabaseNow, ExactField, ShownJSON, UnicodeField
from sqlqueue.models.topic import TOPIC_COLUMN

BATCH_ID = 32  # hexadecimal digits of a UUID
NAME_LENGTH = 255


class Batch(models.Model):
    """A batch, and how far it is: sealed once nothing is added from outside any more, failed at its first dead letter
    or deadline, finished once its members are settled, succeeded once none of them is a dead letter. Each of these
    times is set once, in the transaction that publishes the callback. `over`: nothing more is to come. `ended_at`: when
    it was finished or cancelled, from which its retention counts."""

    id = ExactField(_("id"), max_length=BATCH_ID, primary_key=True)
    name = UnicodeField(_("name"), max_length=NAME_LENGTH, db_default="")
    parent = ExactField(_("parent"), max_length=BATCH_ID, db_default="")
    callbacks = ShownJSON(_("callbacks"))
    created_at = models.DateTimeField(_("created at"), db_default=DatabaseNow())
    deadline_at = models.DateTimeField(_("deadline"), null=True)
    sealed_at = models.DateTimeField(_("sealed at"), null=True)
    failed_at = models.DateTimeField(_("failed at"), null=True)
    finished_at = models.DateTimeField(_("finished at"), null=True)
    succeeded_at = models.DateTimeField(_("succeeded at"), null=True)
    cancelled_at = models.DateTimeField(_("cancelled at"), null=True)
    ended_at = models.DateTimeField(_("ended at"), null=True)
    over = models.BooleanField(_("over"), db_default=False)

    class Meta:
        db_table = "sqlqueue_batch"
        verbose_name = _("batch")
        verbose_name_plural = _("batches")
        permissions = [("cancel_batch", "Can cancel batches")]
        indexes = [
            # Supports: SELECT … WHERE over AND id > ? ORDER BY id LIMIT (the sweep).
            models.Index(fields=["over", "id"], name="sqlqueue_batch_over"),
            # Supports: SELECT … WHERE parent (the batches inside one).
            models.Index(fields=["parent"], name="sqlqueue_batch_parent"),
            # Supports: SELECT … WHERE ended_at <= ? ORDER BY ended_at LIMIT (collect).
            models.Index(fields=["ended_at"], name="sqlqueue_batch_ended"),
            # Supports: SELECT … WHERE over ORDER BY created_at, id (the admin's list).
            models.Index(fields=["over", "created_at", "id"], name="sqlqueue_batch_created"),
        ]

    def __str__(self) -> str:
        return printable(self.name) or self.id  # Django's log of changes keeps it


class BatchGroup(models.Model):
    """A consumer group that has to settle a batch's members of a topic."""

    batch = ExactField(_("batch"), max_length=BATCH_ID)
    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    consumer_group = ExactField(_("group"), max_length=GROUP_LENGTH)

    class Meta:
        db_table = "sqlqueue_batch_group"
        verbose_name = _("batch's group")
        verbose_name_plural = _("batches' groups")
        constraints = [
            # Supports: SELECT … WHERE batch IN (what a batch waits for).
            models.UniqueConstraint(fields=["batch", "topic", "consumer_group"], name="sqlqueue_batch_group_of"),
        ]

    def __str__(self) -> str:
        return f"{self.consumer_group} of {self.topic} for {self.batch}"


class BatchPart(models.Model):
    """How many members were added to a batch by one thread (`part`, random), for one topic; target_group: for one group
    only, "" for all. Written in the transaction that publishes them. Negative: taken away again. replayed: dead letters
    that were delivered again."""

    batch = ExactField(_("batch"), max_length=BATCH_ID)
    part = models.BigIntegerField(_("part"))
    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    target_group = ExactField(_("group"), max_length=GROUP_LENGTH, db_default="")
    added = models.BigIntegerField(_("added"), db_default=0)
    replayed = models.BigIntegerField(_("replayed"), db_default=0)

    class Meta:
        db_table = "sqlqueue_batch_part"
        verbose_name = _("batch's part")
        verbose_name_plural = _("batches' parts")
        constraints = [
            # Supports: UPDATE … WHERE batch, part, topic, target_group; SELECT … WHERE batch IN (how many members).
            models.UniqueConstraint(fields=["batch", "part", "topic", "target_group"], name="sqlqueue_batch_part_of"),
        ]

    def __str__(self) -> str:
        return f"{self.added} of {self.topic} for {self.batch}"


class BatchProgress(models.Model):
    """How many members of a batch a group has settled in a partition. Values that the owner writes in
    its settle, behind its fence: each row has one writer, and a settle that is run again changes nothing."""

    batch = ExactField(_("batch"), max_length=BATCH_ID)
    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    consumer_group = ExactField(_("group"), max_length=GROUP_LENGTH)
    partition = models.IntegerField(_("partition"))
    priority = models.SmallIntegerField(_("priority"))
    acked = models.BigIntegerField(_("acked"))
    dead = models.BigIntegerField(_("dead"))

    class Meta:
        db_table = "sqlqueue_batch_progress"
        verbose_name = _("batch's progress")
        verbose_name_plural = _("batches' progress")
        constraints = [
            # Supports: the upserts of a settle; SELECT … WHERE batch IN (how many are settled).
            models.UniqueConstraint(
                fields=["batch", "topic", "consumer_group", "partition", "priority"],
                name="sqlqueue_batch_progress_priority",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.acked} + {self.dead} of {self.topic}[{self.partition}] for {self.batch}"
