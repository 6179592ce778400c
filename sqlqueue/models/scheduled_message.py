"""Messages on their way into the log."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue.core.keys import GROUP_LENGTH, ID_LENGTH, KEY_LENGTH
from sqlqueue.database.fields import DatabaseNow, ExactField, ShownJSON, UnicodeTextField
from sqlqueue.models.topic import TOPIC_COLUMN


class ScheduledMessage(models.Model):
    """A message that is due later, or was inserted by plain SQL: `INSERT INTO sqlqueue_scheduled_message (topic,
    payload) VALUES (…)` is a valid publish, the defaults make it due now. It is chosen by its state, not by its place,
    so that late commits are no danger. One that cannot enter the log keeps its `refusal` and waits for a person."""

    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    partition_key = ExactField(_("key"), max_length=KEY_LENGTH, db_default="")
    message_id = ExactField(_("id"), max_length=ID_LENGTH, db_default="")
    payload = ShownJSON(_("payload"))
    headers = ShownJSON(_("headers"), null=True)
    priority = models.SmallIntegerField(_("priority"), db_default=0)
    target_group = ExactField(_("target group"), max_length=GROUP_LENGTH, db_default="")
    due_at = models.DateTimeField(_("due at"), db_default=DatabaseNow())
    created_at = models.DateTimeField(_("created at"), db_default=DatabaseNow())
    refused = models.BooleanField(_("refused"), db_default=False)
    refusal = UnicodeTextField(_("refusal"), null=True)  # MySQL's TEXT has no plain default

    class Meta:
        db_table = "sqlqueue_scheduled_message"
        verbose_name = _("scheduled message")
        verbose_name_plural = _("scheduled messages")
        indexes = [
            # Supports: SELECT … WHERE refused = 0 AND due_at <= now ORDER BY due_at, id LIMIT (the scheduler).
            models.Index(fields=["refused", "due_at"], name="sqlqueue_scheduled_due"),
        ]

    def __str__(self) -> str:
        return f"{self.topic} due {self.due_at}"
