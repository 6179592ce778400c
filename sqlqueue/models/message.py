"""The log."""

from __future__ import annotations

from django.db import models
from django.db.models import Case, When
from django.db.models.functions import Cast, Coalesce, Length
from django.utils.translation import gettext_lazy as _

from sqlqueue.core.fingerprint import LENGTH
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX, GROUP_LENGTH, ID_LENGTH, KEY_LENGTH
from sqlqueue.database.entry import Stored
from sqlqueue.database.fields import DatabaseNow, ExactField, UnicodeTextField
from sqlqueue.database.weight import LIGHT
from sqlqueue.models.topic import TOPIC_COLUMN


class MessageQuerySet(models.QuerySet["Message"]):
    """Queries of the log."""

    def dead_letters(self, group: str = "", topic: str = "") -> MessageQuerySet:
        """Return dead letters: copies in a dead-letter topic, of one group or all, from one original topic or all."""
        letters = self.exclude(failed_group="")
        letters = letters.filter(topic=dead_letter_topic(topic)) if topic else letters
        return letters.filter(failed_group=group) if group else letters

    def as_stored(self) -> MessageQuerySet:
        """With payload_text and headers_text: the JSON as the database has it, up to LIGHT characters, for what is more
        stays in the server. Plain SQL may have put in what Python can read and not write again (a half surrogate,
        1e999)."""
        texts = {name: Cast(name, models.TextField()) for name in ("payload", "headers")}
        length = Length(texts["payload"]) + Coalesce(Length(texts["headers"]), 0)
        light = {f"{name}_text": Case(When(length__lte=LIGHT, then=text)) for name, text in texts.items()}
        return self.defer("payload", "headers").annotate(length=length).annotate(**light)


class Message(models.Model):
    """One immutable message. Rows are only added (`sqlqueue.publish`), and removed by collection.

    Adding one by plain SQL would go round the publish gate, and could be missed: plain SQL inserts into
    `sqlqueue_scheduled_message` instead.
    """

    offset = models.BigAutoField(_("offset"), primary_key=True)
    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    partition = models.IntegerField(_("partition"))
    priority = models.SmallIntegerField(_("priority"), db_default=0)
    partition_key = ExactField(_("key"), max_length=KEY_LENGTH, db_default="")
    message_id = ExactField(_("id"), max_length=ID_LENGTH)
    payload = models.JSONField(_("payload"))
    headers = models.JSONField(_("headers"), null=True)
    created_at = models.DateTimeField(_("created at"), db_default=DatabaseNow())
    target_group = ExactField(_("target group"), max_length=GROUP_LENGTH, db_default="")
    failed_at = models.DateTimeField(_("failed at"), null=True)
    failure_count = models.IntegerField(_("failures"), db_default=0)
    last_error = UnicodeTextField(_("last error"), null=True)  # MySQL's TEXT has no plain default
    original_topic = ExactField(_("original topic"), max_length=TOPIC_COLUMN, db_default="")
    original_offset = models.BigIntegerField(_("original offset"), null=True)
    failed_group = ExactField(_("failed group"), max_length=GROUP_LENGTH, db_default="")
    fingerprint = ExactField(_("fingerprint"), max_length=LENGTH, db_default="")

    objects = MessageQuerySet.as_manager()

    class Meta:
        db_table = "sqlqueue_message"
        verbose_name = _("message")
        verbose_name_plural = _("messages")
        permissions = [
            ("redeliver_message", "Can deliver messages again, or cancel them"),
            ("replay_message", "Can replay dead letters"),
            ("discard_message", "Can discard dead letters"),
        ]
        constraints = [
            # Supports: INSERT … ON DUPLICATE KEY of a repeated id (publish, dead letters).
            models.UniqueConstraint(fields=["topic", "partition", "message_id"], name="sqlqueue_message_id"),
        ]
        indexes = [
            # Supports: SELECT … WHERE topic, partition, priority AND offset > ? ORDER BY offset LIMIT (fetch, recover,
            # collect).
            models.Index(fields=["topic", "partition", "priority", "offset"], name="sqlqueue_message_fetch"),
        ]

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"

    def to_copy(self) -> tuple[str | Stored, str | None]:
        """Return payload and headers for a copy, of a message that was read as_stored()."""
        if self.payload_text is None:  # type: ignore[attr-defined]
            return Stored(self._meta.db_table, "offset", self.offset), None
        return self.payload_text, self.headers_text  # type: ignore[attr-defined]


def dead_letter_topic(topic: str) -> str:
    """Return the topic that a topic's dead letters go to."""
    return topic + DEAD_LETTER_SUFFIX
