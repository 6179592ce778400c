"""Scheduled messages, which enter the log when they are due, and the schedules that publish periodically."""

from __future__ import annotations

from django.db import models
from django.db.models.expressions import RawSQL
from django.utils.translation import gettext_lazy as _

from sqlqueue.core.keys import GROUP_LENGTH, ID_LENGTH, KEY_LENGTH
from sqlqueue.core.periodic import DIGEST_LENGTH, SCHEDULE_LENGTH
from sqlqueue.database.fields import DatabaseNow, ExactField, ShownJSON, UnicodeTextField
from sqlqueue.database.ids import FIND_SCHEDULED
from sqlqueue.database.log import Log
from sqlqueue.models.topic import TOPIC_COLUMN

SUPERSEDED = 20  # definitions that a schedule remembers


class ScheduledMessageQuerySet(models.QuerySet["ScheduledMessage"]):
    """Queries of the schedule."""

    def of_id(self, topic: str, id: str, key: str) -> ScheduledMessageQuerySet:
        """Return the message of a topic, id and key, by the index that is unique in them."""
        return self.filter(id=RawSQL(Log.of(self.db).dialect.sql(FIND_SCHEDULED), (topic, id, key)))


class ScheduledMessage(models.Model):
    """A message that is due later, or was inserted by plain SQL: `INSERT INTO sqlqueue_scheduled_message (topic,
    payload) VALUES (…)` is a valid publish, the defaults make it due now. The scheduler selects rows by state, not by
    id, so that it misses no late commit. An id is unique from here on, within topic and key, as in the log. A message
    that cannot enter the log keeps its `refusal` and its id until an operator corrects or deletes it."""

    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    partition_key = ExactField(_("key"), max_length=KEY_LENGTH, db_default="")
    message_id = ExactField(  # type: ignore[misc]  # it is a str elsewhere
        _("id"), max_length=ID_LENGTH, null=True, help_text=_("empty: a fresh one when it is due")
    )
    payload = ShownJSON(_("payload"))
    headers = ShownJSON(_("headers"), null=True)
    priority = models.SmallIntegerField(_("priority"), db_default=0)
    target_group = ExactField(_("target group"), max_length=GROUP_LENGTH, db_default="")
    due_at = models.DateTimeField(_("due at"), db_default=DatabaseNow())
    created_at = models.DateTimeField(_("created at"), db_default=DatabaseNow())
    refused = models.BooleanField(_("refused"), db_default=False)
    refusal = UnicodeTextField(_("refusal"), null=True)  # MySQL's TEXT has no plain default
    body = models.BinaryField(_("body"), null=True)  # a payload of bytes: then `payload` is JSON's null
    expires_after = models.FloatField(
        _("expires after"), null=True, help_text=_("seconds from when it is due; empty: never")
    )

    objects = ScheduledMessageQuerySet.as_manager()

    class Meta:
        db_table = "sqlqueue_scheduled_message"
        verbose_name = _("scheduled message")
        verbose_name_plural = _("scheduled messages")
        constraints = [
            # Supports: INSERT … ON DUPLICATE KEY of a repeated id, and a publisher's search for a scheduled id.
            models.UniqueConstraint(fields=["topic", "message_id", "partition_key"], name="sqlqueue_scheduled_id"),
            models.CheckConstraint(condition=~models.Q(message_id=""), name="sqlqueue_scheduled_id_not_empty"),
        ]
        indexes = [
            # Supports: SELECT … WHERE refused = 0 AND due_at <= now ORDER BY due_at, id LIMIT (the scheduler).
            models.Index(fields=["refused", "due_at"], name="sqlqueue_scheduled_due"),
            # Supports: SELECT id … WHERE topic, partition_key ORDER BY id LIMIT (cancel_all).
            models.Index(fields=["topic", "partition_key"], name="sqlqueue_scheduled_key"),
        ]

    def __str__(self) -> str:
        return f"{self.topic} due {self.due_at}"


class PeriodicSchedule(models.Model):
    """A schedule of `@periodic` or SQLQUEUE["SCHEDULES"], as the consumer processes have declared it. Whichever of them
    publishes a tick moves `ticked_to` in the same transaction, so that each tick is published once. A schedule whose
    definition no process has renewed until `attended_until` is no longer in the code, or no process runs."""

    name = ExactField(_("name"), max_length=SCHEDULE_LENGTH, primary_key=True)
    definition = UnicodeTextField(_("definition"))
    digest = ExactField(_("digest"), max_length=DIGEST_LENGTH)
    superseded = ExactField(
        _("superseded"),
        max_length=SUPERSEDED * (DIGEST_LENGTH + 1),
        db_default="",
        help_text=_("digests of the definitions that this one has replaced"),
    )
    paused = models.BooleanField(_("paused"), db_default=False)
    declared_at = models.DateTimeField(_("declared at"), db_default=DatabaseNow())
    attended_until = models.DateTimeField(_("attended until"))
    ticked_to = models.DateTimeField(
        _("ticked to"), help_text=_("all ticks up to this time are published or passed over")
    )
    next_tick = models.DateTimeField(_("next tick"))
    last_tick = models.DateTimeField(_("last tick"), null=True)
    last_published_at = models.DateTimeField(_("last published at"), null=True)
    refusal = UnicodeTextField(_("refusal"), null=True)

    class Meta:
        db_table = "sqlqueue_periodic_schedule"
        verbose_name = _("periodic schedule")
        verbose_name_plural = _("periodic schedules")
        permissions = [
            ("pause_periodicschedule", _("Can pause and resume periodic schedules")),
            ("run_periodicschedule", _("Can run periodic schedules now")),
        ]

    def __str__(self) -> str:
        return self.name
