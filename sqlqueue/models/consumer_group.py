"""A registered consumer group."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue.core.keys import GROUP_LENGTH
from sqlqueue.database.fields import DatabaseNow, ExactField, UnicodeTextField
from sqlqueue.models.topic import TOPIC_COLUMN


class ConsumerGroup(models.Model):
    """A group that reads a topic: registered before its first read and removed only by an operator, so that collection
    waits for a group that is away. `start` is the offset behind which it began: it gets what lies above it. Moving the
    group changes its offset rows only, but for a rewind below `start`; where it has no offset row, its position is
    `start`. `streamed_to` is the end of the last batch that a Spark stream has planned; its checkpoint may be there
    before the positions are. `streamed_by` is the identity of that checkpoint, and `streamed_read` whether a task has
    read the batch. `flow` is what its consumers' options say of its active hours and limits, `flow_overrides` what an
    operator has set instead, both as JSON; NULL: nothing. `tokens` is what the bucket of its rate limit held at
    `tokens_at`; `failures` and the times behind it are of its retry budget."""

    consumer_group = ExactField(_("group"), max_length=GROUP_LENGTH)
    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    start = models.BigIntegerField(_("start"), db_default=0)
    streamed_to = models.BigIntegerField(_("streamed to"), db_default=0)
    streamed_by = ExactField(max_length=32, db_default="")
    streamed_read = models.BooleanField(db_default=False)
    paused = models.BooleanField(_("paused"), db_default=False)
    flow = UnicodeTextField(_("active hours and limits"), null=True)
    flow_overrides = UnicodeTextField(_("overridden hours and limits"), null=True)
    tokens = models.FloatField(_("tokens"), null=True)
    tokens_at = models.DateTimeField(_("tokens counted at"), null=True)
    failures = models.IntegerField(_("failures"), null=True)
    failures_since = models.DateTimeField(_("failures counted since"), null=True)
    opened_at = models.DateTimeField(_("retry budget spent at"), null=True)
    trial_at = models.DateTimeField(_("next trial at"), null=True)
    created_at = models.DateTimeField(_("created at"), db_default=DatabaseNow())

    class Meta:
        db_table = "sqlqueue_consumer_group"
        verbose_name = _("consumer group")
        verbose_name_plural = _("consumer groups")
        permissions = [
            ("pause_consumergroup", "Can pause and resume consumer groups"),
            ("replay_consumergroup", "Can move consumer groups to another offset"),
        ]
        constraints = [
            # Supports: SELECT … WHERE topic [AND consumer_group] (registration, collection, acquiring).
            models.UniqueConstraint(fields=["topic", "consumer_group"], name="sqlqueue_consumer_group_topic"),
        ]

    def __str__(self) -> str:
        return f"{self.consumer_group} of {self.topic}"
