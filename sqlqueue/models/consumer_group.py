"""Consumer groups: registered groups, and where each stands in each partition."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue.core.keys import GROUP_LENGTH, KEY_LENGTH
from sqlqueue.core.settle_plan import ALONE, NOT_IN_FLIGHT, TOGETHER
from sqlqueue.database.fields import DatabaseNow, ExactField, UnicodeTextField
from sqlqueue.models.topic import TOPIC_COLUMN

# Whether a message is in flight: together with others of its process, or alone. Higher values are alone, too.
IN_FLIGHT = [(NOT_IN_FLIGHT, _("no")), (TOGETHER, _("together")), (ALONE, _("alone"))]


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


class Offset(models.Model):
    """Position, watermark (`offset_acked`) and claim of (group, topic, partition, priority), and the fencing token
    that a writer must hold. A settle without failures writes only this row."""

    consumer_group = ExactField(_("group"), max_length=GROUP_LENGTH)
    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    partition = models.IntegerField(_("partition"))
    priority = models.SmallIntegerField(_("priority"), db_default=0)
    position = models.BigIntegerField(_("position"))
    offset_acked = models.BigIntegerField(_("watermark"))
    claimed_to = models.BigIntegerField(_("claimed to"))
    fencing_token = models.BigIntegerField(_("fencing token"))
    updated_at = models.DateTimeField(_("updated at"), db_default=DatabaseNow())

    class Meta:
        db_table = "sqlqueue_offset"
        verbose_name = _("offset")
        verbose_name_plural = _("offsets")
        constraints = [
            # Supports: SELECT … WHERE topic [AND consumer_group [AND partition IN]] (acquire, collect, status).
            models.UniqueConstraint(
                fields=["topic", "consumer_group", "partition", "priority"], name="sqlqueue_offset_priority"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.consumer_group} of {self.topic}[{self.partition}] at {self.position}"


class DeliveryStateQuerySet(models.QuerySet["DeliveryState"]):
    """Queries of the delivery states."""

    def unsettled(self) -> DeliveryStateQuerySet:
        """Return those that are not acked."""
        return self.filter(acked=False)


class DeliveryState(models.Model):
    """A message that failed, is delayed, was in flight at a crash, or was acked out of order. A message without a row
    is settled if it is at or below the position and not in its key's blocked range, and not if it is above."""

    consumer_group = ExactField(_("group"), max_length=GROUP_LENGTH)
    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    partition = models.IntegerField(_("partition"))
    priority = models.SmallIntegerField(_("priority"), db_default=0)
    message_offset = models.BigIntegerField(_("offset"))
    acked = models.BooleanField(_("acked"), db_default=False)
    in_flight = models.SmallIntegerField(_("in flight"), choices=IN_FLIGHT, db_default=NOT_IN_FLIGHT)
    invisible_until = models.DateTimeField(_("invisible until"), db_default=DatabaseNow())
    retry_count = models.IntegerField(_("attempts"), db_default=0)
    last_error = UnicodeTextField(_("last error"), null=True)  # MySQL's TEXT has no plain default

    objects = DeliveryStateQuerySet.as_manager()

    class Meta:
        db_table = "sqlqueue_delivery_state"
        verbose_name = _("delivery state")
        verbose_name_plural = _("delivery states")
        permissions = [("reschedule_deliverystate", "Can reschedule and acknowledge deliveries")]
        constraints = [
            # Supports: upserts of a settle; SELECT … WHERE topic, consumer_group, partition, priority [AND
            # message_offset] (acquire, load, atomic settle, the lowest unacked one).
            models.UniqueConstraint(
                fields=["topic", "consumer_group", "partition", "priority", "message_offset"],
                name="sqlqueue_state_message",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.consumer_group} of {self.topic}[{self.partition}]@{self.message_offset}"


class BlockedRange(models.Model):
    """Every visible message of this key with low < offset <= high that has no delivery state of its own is unsettled,
    and was never dispatched. It is at or below the position, and so at or below the horizon: no message can appear in
    it any more. One row for each key, however many messages wait."""

    consumer_group = ExactField(_("group"), max_length=GROUP_LENGTH)
    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    partition = models.IntegerField(_("partition"))
    priority = models.SmallIntegerField(_("priority"), db_default=0)
    partition_key = ExactField(_("key"), max_length=KEY_LENGTH)
    low = models.BigIntegerField(_("low"), help_text=_("the range begins behind this offset; it only rises"))
    high = models.BigIntegerField(_("high"), help_text=_("the last offset of the range"))
    messages = models.BigIntegerField(_("messages"), db_default=0, help_text=_("about how many wait; for display only"))

    class Meta:
        db_table = "sqlqueue_blocked_range"
        verbose_name = _("blocked range")
        verbose_name_plural = _("blocked ranges")
        constraints = [
            # Supports: SELECT … WHERE topic, consumer_group, partition, priority [AND partition_key] (acquire, status);
            # the upserts of a settle.
            models.UniqueConstraint(
                fields=["topic", "consumer_group", "partition", "priority", "partition_key"],
                name="sqlqueue_blocked_range_key",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.consumer_group} of {self.topic}[{self.partition}] {self.partition_key}: {self.low}–{self.high}"
