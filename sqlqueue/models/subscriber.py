"""Subscribers: the consumer processes that are alive, and what each of them holds: leases, and shares of limits."""

from __future__ import annotations

from datetime import timedelta

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue.core.keys import GROUP_LENGTH
from sqlqueue.database.fields import DatabaseNow, ExactField, UnicodeField
from sqlqueue.models.topic import TOPIC_COLUMN

# How far a beat may lie ahead of the database's clock and still count. One that is further ahead was written before the
# clock was set back: a live process beats again, and a dead one must not count as alive until that time.
AHEAD = timedelta(seconds=60)
STREAM = "spark:"  # so the name of a subscriber begins that is a Spark stream
HOLDER_LENGTH = 120
WAITS = "-"  # no subscriber's name: its group may not start the partition yet, and no process takes it


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


class PartitionLease(models.Model):
    """A subscriber's exclusive, expiring right to one (group, topic, partition). The fencing token grows with
    every change of owner, and never returns, not even if the group is removed and registered again.

    A partition of a later epoch has the holder WAITS until the group has settled what is before it."""

    consumer_group = ExactField(_("group"), max_length=GROUP_LENGTH)
    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    partition = models.IntegerField(_("partition"))
    holder = ExactField(_("holder"), max_length=HOLDER_LENGTH, db_default="")
    fencing_token = models.BigIntegerField(_("fencing token"), db_default=0)
    valid_until = models.DateTimeField(_("valid until"), null=True)

    class Meta:
        db_table = "sqlqueue_partition_lease"
        verbose_name = _("partition lease")
        verbose_name_plural = _("partition leases")
        constraints = [
            # Supports: SELECT … WHERE topic AND consumer_group (all of a group).
            models.UniqueConstraint(fields=["topic", "consumer_group", "partition"], name="sqlqueue_lease_partition"),
        ]
        indexes = [
            # Supports: UPDATE … WHERE holder = ? (renew all of a subscriber's leases, free a dead one's).
            models.Index(fields=["holder"], name="sqlqueue_lease_holder"),
            # Supports: SELECT … WHERE topic AND consumer_group AND (valid_until IS NULL OR valid_until <= ?) (free or
            # expired ones, however many are held).
            models.Index(fields=["topic", "consumer_group", "valid_until"], name="sqlqueue_lease_until"),
        ]

    def __str__(self) -> str:
        return f"{self.consumer_group} of {self.topic}[{self.partition}]: {self.holder or '—'}"


class LimitShareQuerySet(models.QuerySet["LimitShare"]):
    """Queries of the shares."""

    def alive(self) -> LimitShareQuerySet:
        """Return those that have not expired, by the database's clock. One from a future time is not alive: the clock
        was set back."""
        return self.filter(expires_at__gt=DatabaseNow(), taken_at__lt=DatabaseNow() + AHEAD)


class LimitShare(models.Model):
    """What one process may do of what its group's limits allow. All rows of a group change under the lock of the
    group's row, so the slots of those alive are never more than its limit. `demand` is in messages a second; `slots`
    handlers may run at once, `wanted` could; `held_back` tells whether something waited for a token or a slot."""

    subscriber = ExactField(_("subscriber"), max_length=HOLDER_LENGTH)
    consumer_group = ExactField(_("group"), max_length=GROUP_LENGTH)
    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    demand = models.FloatField(_("demand"))
    drew_at = models.DateTimeField(_("drew at"))
    slots = models.IntegerField(_("slots"))
    wanted = models.IntegerField(_("wanted slots"))
    waits_since = models.DateTimeField(_("waits since"), null=True)
    held_back = models.BooleanField(_("held back"))
    taken_at = models.DateTimeField(_("taken at"))
    expires_at = models.DateTimeField(_("expires at"))

    objects = LimitShareQuerySet.as_manager()

    class Meta:
        db_table = "sqlqueue_limit_share"
        constraints = [
            # Supports: SELECT/DELETE … WHERE topic AND consumer_group (taking a share; a group's removal).
            models.UniqueConstraint(
                fields=["topic", "consumer_group", "subscriber"], name="sqlqueue_limit_share_subscriber"
            ),
        ]
        indexes = [
            # Supports: DELETE … WHERE subscriber = ? (a process's end).
            models.Index(fields=["subscriber"], name="sqlqueue_limit_share_own"),
        ]
