"""Collected messages: what the log held before collection, with the outcome in each group."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue.core.keys import GROUP_LENGTH, ID_LENGTH, KEY_LENGTH
from sqlqueue.database.fields import DatabaseNow, ExactField
from sqlqueue.models.topic import TOPIC_COLUMN


class CollectedMessage(models.Model):
    """A message of a topic with `keep_collected`: moved here by the transaction that collected it, and deleted when
    `kept_until` has passed. Nothing of the engine reads it."""

    message_offset = models.BigIntegerField(_("offset"))
    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    partition = models.IntegerField(_("partition"))
    priority = models.SmallIntegerField(_("priority"))
    partition_key = ExactField(_("key"), max_length=KEY_LENGTH)
    message_id = ExactField(_("id"), max_length=ID_LENGTH)
    payload = models.JSONField(_("payload"))
    headers = models.JSONField(_("headers"), null=True)
    body = models.BinaryField(_("body"), null=True)
    created_at = models.DateTimeField(_("created at"))
    published_at = models.DateTimeField(_("published at"), null=True)
    due_at = models.DateTimeField(_("due at"), null=True)
    target_group = ExactField(_("target group"), max_length=GROUP_LENGTH)
    outcomes = models.JSONField(
        _("outcomes"), help_text=_("by group: acked or dead, and the attempts as far as a receipt says")
    )
    collected_at = models.DateTimeField(_("collected at"), db_default=DatabaseNow())
    kept_until = models.DateTimeField(_("kept until"))

    class Meta:
        db_table = "sqlqueue_collected_message"
        verbose_name = _("collected message")
        verbose_name_plural = _("collected messages")
        indexes = [
            # Supports: SELECT … WHERE kept_until <= now ORDER BY kept_until LIMIT (collect).
            models.Index(fields=["kept_until"], name="sqlqueue_collected_until"),
            # Support: the admin's search.
            models.Index(fields=["message_offset"], name="sqlqueue_collected_offset"),
            models.Index(fields=["message_id"], name="sqlqueue_collected_id"),
            models.Index(fields=["partition_key"], name="sqlqueue_collected_key"),
        ]

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.message_offset}"
