"""Outcomes: how deliveries went and ended, and what their handlers returned."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue.core.keys import GROUP_LENGTH, ID_LENGTH, KEY_LENGTH
from sqlqueue.database.fields import DatabaseNow, ExactField, ShownJSON, UnicodeField, UnicodeTextField
from sqlqueue.models.subscriber import HOLDER_LENGTH
from sqlqueue.models.topic import TOPIC_COLUMN

NOTE_LENGTH = 255


class Receipt(models.Model):
    """One delivery's outcome, written with its settle, as far as the topic's history asks for it. Or, with the outcome
    `replayed`, that its dead letter was replayed: `worker` is the id of the copy, `serial` the dead letter's offset."""

    consumer_group = ExactField(_("group"), max_length=GROUP_LENGTH)
    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    partition = models.IntegerField(_("partition"))
    message_offset = models.BigIntegerField(_("offset"))
    outcome = ExactField(_("outcome"), max_length=20)
    attempts = models.IntegerField(_("attempt"))
    started_at = models.DateTimeField(_("started at"))
    finished_at = models.DateTimeField(_("finished at"))
    worker = ExactField(_("worker"), max_length=HOLDER_LENGTH)
    serial = models.BigIntegerField(_("serial"))

    class Meta:
        db_table = "sqlqueue_receipt"
        verbose_name = _("receipt")
        verbose_name_plural = _("receipts")
        constraints = [
            # Supports: a settle that is run again, because its reply was lost, writes no second receipt.
            models.UniqueConstraint(fields=["worker", "serial"], name="sqlqueue_receipt_serial"),
        ]
        indexes = [
            # Supports: SELECT … WHERE message_offset = ? (the outcomes of a message in each group).
            models.Index(fields=["message_offset", "consumer_group"], name="sqlqueue_receipt_message"),
        ]

    def __str__(self) -> str:
        return f"{self.consumer_group}@{self.message_offset}: {self.outcome}"


class Result(models.Model):
    """How a message ended for a group that keeps results (`keep_results`): written in the transaction that settles it,
    and deleted when `expires_at` has passed. It outlives its message, so it names it by topic, key and id, too.

    Or how a task stands (sqlqueue.tasks.states): written with its message, which names no topic here, and at the start
    and at the end of each attempt. outcome: its status; task: what was enqueued, as JSON; run: what came of it until
    now; error: that of each attempt, as JSON; (message_offset, run_token, serial) say which delivery has written
    last: an earlier one changes nothing.
    """

    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    partition_key = ExactField(_("key"), max_length=KEY_LENGTH, db_default="")
    message_id = ExactField(_("id"), max_length=ID_LENGTH)
    consumer_group = ExactField(_("group"), max_length=GROUP_LENGTH)
    message_offset = models.BigIntegerField(_("offset"))
    outcome = ExactField(_("outcome"), max_length=20)
    attempts = models.IntegerField(_("attempts"))
    result = ShownJSON(_("result"), null=True)
    error = UnicodeTextField(_("error"), null=True)  # MySQL's TEXT has no plain default
    started_at = models.DateTimeField(_("started at"), null=True)
    finished_at = models.DateTimeField(_("finished at"), null=True)
    expires_at = models.DateTimeField(_("expires at"), null=True)
    task = UnicodeTextField(_("task"), null=True)
    run = UnicodeTextField(_("state"), null=True)
    run_token = models.BigIntegerField(_("fencing token"), db_default=0)
    serial = models.BigIntegerField(_("serial"), db_default=0)

    class Meta:
        db_table = "sqlqueue_result"
        constraints = [
            # Supports: the upserts of a settle; SELECT … WHERE message_id, topic, partition_key (the status of a
            # message); SELECT, UPDATE … WHERE all four (a task).
            models.UniqueConstraint(
                fields=["message_id", "topic", "partition_key", "consumer_group"], name="sqlqueue_result_message"
            ),
        ]
        indexes = [
            # Supports: SELECT … WHERE expires_at <= now ORDER BY expires_at LIMIT (collect).
            models.Index(fields=["expires_at"], name="sqlqueue_result_expires"),
        ]


class Progress(models.Model):
    """How far a handler says it is (`delivery.progress`). It counts only while the partition has this fencing token: a
    handler of a former owner may still run. The settle of the delivery deletes it."""

    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    consumer_group = ExactField(_("group"), max_length=GROUP_LENGTH)
    message_offset = models.BigIntegerField(_("offset"))
    fencing_token = models.BigIntegerField(_("fencing token"))
    serial = models.BigIntegerField(_("serial"), help_text=_("of the attempt, in its process"))
    done = models.FloatField(_("done"))
    total = models.FloatField(_("total"), null=True)
    note = UnicodeField(_("note"), max_length=NOTE_LENGTH, db_default="")
    updated_at = models.DateTimeField(_("updated at"), db_default=DatabaseNow())

    class Meta:
        db_table = "sqlqueue_progress"
        constraints = [
            # Supports: the upserts of a handler; SELECT … WHERE message_offset (the status of a message); the deletes
            # of a settle.
            models.UniqueConstraint(fields=["message_offset", "consumer_group"], name="sqlqueue_progress_message"),
        ]
        indexes = [
            # Supports: SELECT … WHERE updated_at <= ? ORDER BY updated_at LIMIT (collect: what a killed process left).
            models.Index(fields=["updated_at"], name="sqlqueue_progress_updated"),
        ]


class Activity(models.Model):
    """How many deliveries a group settled in one minute, how many messages its filter left out, and how far behind it
    was. Kept for a week, for charts and rates; the engine decides nothing by it."""

    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    consumer_group = ExactField(_("group"), max_length=GROUP_LENGTH)
    minute = models.DateTimeField(_("minute"))
    acked = models.BigIntegerField(_("acked"), db_default=0)
    retried = models.BigIntegerField(_("retried"), db_default=0)
    postponed = models.BigIntegerField(_("postponed"), db_default=0)
    dead = models.BigIntegerField(_("dead"), db_default=0)
    filtered = models.BigIntegerField(
        _("filtered"), db_default=0, help_text=_("acked without a handler, by its filter")
    )
    seconds = models.FloatField(_("handlers' time"), db_default=0, help_text=_("seconds"))
    lag = models.BigIntegerField(_("lag"), null=True, help_text=_("messages; empty: not measured"))

    class Meta:
        db_table = "sqlqueue_activity"
        constraints = [
            # Supports: the additions of every process; SELECT … WHERE topic AND consumer_group AND minute > ? (charts).
            models.UniqueConstraint(fields=["topic", "consumer_group", "minute"], name="sqlqueue_activity_minute"),
        ]
        indexes = [
            # Supports: SELECT … WHERE minute >= ? (rates of all groups), WHERE minute < ? LIMIT (deleting old rows).
            models.Index(fields=["minute"], name="sqlqueue_activity_recent"),
        ]
