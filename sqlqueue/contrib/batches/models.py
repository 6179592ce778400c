"""Batches: messages that are followed as one group of work, and what is called once they are settled."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue.core.keys import GROUP_LENGTH
from sqlqueue.core.logfmt import printable
from sqlqueue.database.fields import DatabaseNow, ExactField, ShownJSON, UnicodeField
from sqlqueue.models.topic import TOPIC_COLUMN

BITS = 62  # members of a part: a signed 64-bit number has them in each database
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


class BatchPart(models.Model):
    """Up to BITS members of a batch that one group gets, a bit each, all of one topic and, as long as its number of
    partitions stays, of one partition. consumer_group: "" for a member alone, which was published before any group was
    registered; part: unique in the batch, but for the groups that get the same members; outstanding and dead: those
    that are not settled, or dead letters."""

    batch = ExactField(max_length=BATCH_ID)
    part = models.BigIntegerField()
    topic = ExactField(max_length=TOPIC_COLUMN)
    consumer_group = ExactField(max_length=GROUP_LENGTH)
    members = models.BigIntegerField()
    outstanding = models.BigIntegerField()
    dead = models.BigIntegerField(db_default=0)

    class Meta:
        db_table = "sqlqueue_batch_part"
        constraints = [
            # Supports: UPDATE … WHERE batch AND part IN AND consumer_group (the outcomes of a settle).
            models.UniqueConstraint(fields=["batch", "part", "consumer_group"], name="sqlqueue_batch_part_number"),
        ]
        indexes = [
            # Supports: SELECT … WHERE batch AND outstanding > 0 (whether any is).
            models.Index(fields=["batch", "outstanding"], name="sqlqueue_batch_part_open"),
            # Supports: SELECT … WHERE batch AND dead > 0 (whether any is).
            models.Index(fields=["batch", "dead"], name="sqlqueue_batch_part_dead"),
            # Supports: SELECT … WHERE topic AND consumer_group (a group that is removed; whether there are any).
            models.Index(fields=["topic", "consumer_group"], name="sqlqueue_batch_part_topic"),
        ]
