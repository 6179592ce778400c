"""Leases: which subscriber owns a partition."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue.core.keys import GROUP_LENGTH
from sqlqueue.database.fields import ExactField
from sqlqueue.models.topic import TOPIC_COLUMN

HOLDER_LENGTH = 120
WAITS = "-"  # no subscriber's name: its group may not start the partition yet, and no process takes it


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
