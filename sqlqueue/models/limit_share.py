"""The shares of consumer processes in the limits of their groups."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue.core.keys import GROUP_LENGTH
from sqlqueue.database.fields import DatabaseNow, ExactField
from sqlqueue.models.partition_lease import HOLDER_LENGTH
from sqlqueue.models.subscriber_heartbeat import AHEAD
from sqlqueue.models.topic import TOPIC_COLUMN


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
        verbose_name = _("share of a limit")
        verbose_name_plural = _("shares of limits")
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

    def __str__(self) -> str:
        return f"{self.subscriber} of {self.consumer_group} of {self.topic}"
