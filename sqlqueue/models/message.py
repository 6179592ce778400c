"""The log of messages, and what is kept of messages that have left it or are unique."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import models
from django.db.models import Case, When
from django.db.models.expressions import RawSQL
from django.db.models.functions import Cast, Coalesce, Length
from django.utils.translation import gettext_lazy as _

from sqlqueue.core.keys import DEAD_LETTER_SUFFIX, GROUP_LENGTH, ID_LENGTH, KEY_LENGTH
from sqlqueue.core.outcomes import LENGTH
from sqlqueue.database.fields import DatabaseNow, ExactField, UnicodeTextField
from sqlqueue.database.ids import FIND, FIND_KEYS, IDENTITY, IN_LOG, Identity, looked_up
from sqlqueue.database.insert_sql import Stored
from sqlqueue.database.log import Log
from sqlqueue.database.sizes import LIGHT, chunks
from sqlqueue.models.topic import TOPIC_COLUMN

AT_ONCE = 500  # ids of one statement
DIGEST_LENGTH = 64  # hexadecimal digits of SHA-256


class MessageQuerySet(models.QuerySet["Message"]):
    """Queries of the log."""

    def dead_letters(self, group: str = "", topic: str = "") -> MessageQuerySet:
        """Return dead letters, of one group or ("") all, of one original topic or ("") all."""
        rows = self.exclude(failed_group="")
        rows = rows.filter(topic=dead_letter_topic(topic)) if topic else rows
        return rows.filter(failed_group=group) if group else rows

    def of_id(self, topic: str, id: str, key: str) -> MessageQuerySet:
        """Return the message of a topic, id and key, by the index that is unique in them."""
        return self.filter(offset=RawSQL(Log.of(self.db).dialect.sql(FIND), (topic, id, key)))

    def of_ids(self, identities: Sequence[Identity], *columns: str) -> list[Message]:
        """Return those messages of these topics, ids and keys that are there, by the index that is unique in them, with
        their offsets and these columns. A statement for each 500; conditions of the query itself do not count."""
        found: list[Message] = []
        for some in chunks(Log.of(self.db), identities, AT_ONCE):
            found += self.raw(*looked_up(Log.of(self.db).dialect, IN_LOG, some, ("offset", *columns)))
        return found

    def of_any_key(self, topic: str, id: str, most: int) -> list[Message]:
        """Return the messages of a topic and id, at most so many, by the same index: their offsets and keys."""
        return list(self.raw(Log.of(self.db).dialect.joined("wanted", IDENTITY[:2], 1, FIND_KEYS), [topic, id, most]))

    def without_content(self) -> MessageQuerySet:
        """Leave payload, headers and body in the server."""
        return self.defer("payload", "headers", "body")

    def as_stored(self) -> MessageQuerySet:
        """Annotate payload_text and headers_text: the JSON as the database stores it, or None above LIGHT characters,
        so that large ones stay in the server; bytes always do. Plain SQL may have stored what Python can decode but not
        encode again (a half surrogate, 1e999)."""
        texts = {name: Cast(name, models.TextField()) for name in ("payload", "headers")}
        length = Length(texts["payload"]) + Coalesce(Length(texts["headers"]), 0)
        light = {f"{name}_text": Case(When(length__lte=LIGHT, body=None, then=text)) for name, text in texts.items()}
        return self.without_content().annotate(length=length).annotate(**light)


class Message(models.Model):
    """One immutable message. Rows are only added (`sqlqueue.publish`), and removed by collection.

    A row that plain SQL inserts here would bypass the publish gate, and consumers could miss it: plain SQL inserts into
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
    published_at = models.DateTimeField(_("published at"), null=True)  # of a message that was scheduled; else NULL
    due_at = models.DateTimeField(_("due at"), null=True)  # likewise
    target_group = ExactField(_("target group"), max_length=GROUP_LENGTH, db_default="")
    failed_at = models.DateTimeField(_("failed at"), null=True)
    failure_count = models.IntegerField(_("failures"), db_default=0)
    last_error = UnicodeTextField(_("last error"), null=True)  # MySQL's TEXT has no plain default
    original_topic = ExactField(_("original topic"), max_length=TOPIC_COLUMN, db_default="")
    original_offset = models.BigIntegerField(_("original offset"), null=True)
    failed_group = ExactField(_("failed group"), max_length=GROUP_LENGTH, db_default="")
    fingerprint = ExactField(_("fingerprint"), max_length=LENGTH, db_default="")
    body = models.BinaryField(_("body"), null=True)  # a payload of bytes: then `payload` is JSON's null
    expires_at = models.DateTimeField(_("expires at"), null=True)

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
            # Supports: INSERT … ON DUPLICATE KEY of a repeated id (publish, dead letters),
            # and the search for an id. Not by the topic first: PostgreSQL might read a topic's streams by it.
            models.UniqueConstraint(fields=["message_id", "topic", "partition_key"], name="sqlqueue_message_id"),
        ]
        indexes = [
            # Supports: SELECT … WHERE topic, partition, priority AND offset > ? ORDER BY offset LIMIT (fetch, recover,
            # collect).
            models.Index(fields=["topic", "partition", "priority", "offset"], name="sqlqueue_message_fetch"),
        ]

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"

    def to_copy(self) -> tuple[str | Stored, str | None]:
        """Return payload and headers for a copy of a message that was read with as_stored()."""
        if self.payload_text is None:  # type: ignore[attr-defined]
            return Stored(self._meta.db_table, "offset", self.offset), None
        return self.payload_text, self.headers_text  # type: ignore[attr-defined]


class DeadLetter(Message):
    """A proxy without a table: it lists the pages of dead letters in the admin's index. They need the permission to
    view messages."""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name = _("dead letter")
        verbose_name_plural = _("dead letters")


def dead_letter_topic(topic: str) -> str:
    """Return the topic that a topic's dead letters go to."""
    return topic + DEAD_LETTER_SUFFIX


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


class UniqueMessage(models.Model):
    """The id of the message that was last published with `unique_for` under a topic and key, and when. A publisher of
    another one locks this row first, whether the message is still pending or not. The row may go once it is not.

    digest: of topic and key. The primary key is short, and it is the only one: InnoDB locks no gap for it.
    """

    digest = ExactField(_("digest"), primary_key=True, max_length=DIGEST_LENGTH)
    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    partition_key = ExactField(_("key"), max_length=KEY_LENGTH)
    message_id = ExactField(_("id"), max_length=ID_LENGTH)
    published_at = models.DateTimeField(_("published at"), db_default=DatabaseNow())

    class Meta:
        db_table = "sqlqueue_unique_message"
