"""Heartbeats of the subscribers that are alive."""

from __future__ import annotations

from datetime import timedelta

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue.core.keys import GROUP_LENGTH
from sqlqueue.database.fields import DatabaseNow, ExactField, UnicodeField
from sqlqueue.models.partition_lease import HOLDER_LENGTH
from sqlqueue.models.topic import TOPIC_COLUMN

# How far a beat may lie ahead of the database's clock and still count. One that is further ahead was written before the
# clock was set back: a live process beats again, and a dead one must not count as alive until that time.
AHEAD = timedelta(seconds=60)
STREAM = "spark:"  # so the name of a subscriber begins that is a Spark stream


class SubscriberHeartbeatQuerySet(models.QuerySet["SubscriberHeartbeat"]):
    """Queries of the heartbeats."""

    def alive(self) -> SubscriberHeartbeatQuerySet:
        """Return those that have not expired, by the database's clock."""
        return self.filter(self.living())

    @staticmethod
    def living() -> models.Q:
        """Return the condition of those that are alive."""
        return models.Q(expires_at__gt=DatabaseNow(), beat_at__lt=DatabaseNow() + AHEAD)


class SubscriberHeartbeat(models.Model):
    """A subscriber in one group of one topic. `address` is where its listener waits for notifications.

    Of a process whose supervisor has seen it die one row is left, with its exit status, until a successor has lived a
    minute: it expired at the death, and `activity` names the messages in doubt.
    """

    subscriber = ExactField(_("subscriber"), max_length=HOLDER_LENGTH)
    consumer_group = ExactField(_("group"), max_length=GROUP_LENGTH)
    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    host = UnicodeField(_("host"), max_length=255, db_default="")
    pid = models.IntegerField(_("process id"), db_default=0)
    address = UnicodeField(_("address"), max_length=100, db_default="")
    activity = UnicodeField(_("activity"), max_length=200, db_default="")
    failing = UnicodeField(
        _("failing tasks"),
        max_length=200,
        db_default="",
        help_text=_("background tasks of it that fail again and again"),
    )
    horizon = models.BigIntegerField(_("horizon"), db_default=0, help_text=_("as far as it knows"))
    version = ExactField(_("version"), max_length=40, db_default="", help_text=_("of sqlqueue"))
    server = ExactField(
        _("database server"), max_length=100, db_default="", help_text=_("the identity of the server that it writes to")
    )
    serves = ExactField(
        _("serves"), max_length=40, db_default="", help_text=_("a digest of all that it serves, in one of its rows")
    )
    runs_until = models.DateTimeField(
        _("runs until"), null=True, help_text=_("the limit of what runs; empty: nothing runs")
    )
    progressed_at = models.DateTimeField(
        _("last progress"), null=True, help_text=_("when a message was settled, or the watermark moved")
    )
    started_at = models.DateTimeField(_("started at"), db_default=DatabaseNow())
    beat_at = models.DateTimeField(_("last beat"), db_default=DatabaseNow())
    expires_at = models.DateTimeField(_("expires at"))
    exit_status = models.SmallIntegerField(
        _("exit status"), null=True, help_text=_("of a process that died; -9: signal 9")
    )
    restart_at = models.DateTimeField(_("successor at"), null=True, help_text=_("when a successor is started"))

    objects = SubscriberHeartbeatQuerySet.as_manager()

    class Meta:
        db_table = "sqlqueue_subscriber_heartbeat"
        verbose_name = _("subscriber")
        verbose_name_plural = _("subscribers")
        constraints = [
            # Supports: SELECT … WHERE topic AND consumer_group (which subscribers share the partitions); the upsert of
            # a beat.
            models.UniqueConstraint(
                fields=["topic", "consumer_group", "subscriber"], name="sqlqueue_heartbeat_subscriber"
            ),
        ]
        indexes = [
            # Supports: UPDATE/DELETE … WHERE subscriber = ? (one process's beats, its end).
            models.Index(fields=["subscriber"], name="sqlqueue_heartbeat_beat"),
            # Supports: SELECT … WHERE serves > '' (a row of each subscriber).
            models.Index(fields=["serves"], name="sqlqueue_heartbeat_serves"),
        ]

    def __str__(self) -> str:
        return self.subscriber
