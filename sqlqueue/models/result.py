"""Results: what handlers returned, and how the tasks of Django's Tasks stand."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue.core.keys import GROUP_LENGTH, ID_LENGTH, KEY_LENGTH
from sqlqueue.database.fields import ExactField, ShownJSON, UnicodeTextField
from sqlqueue.models.topic import TOPIC_COLUMN


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
        verbose_name = _("result")
        verbose_name_plural = _("results")
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

    def __str__(self) -> str:
        return f"{self.consumer_group} of {self.topic}@{self.message_offset}: {self.outcome}"
