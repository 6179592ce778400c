"""Delivery states: what a group has to remember of a message."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue.core.keys import GROUP_LENGTH
from sqlqueue.core.settle_plan import ALONE, NOT_IN_FLIGHT, TOGETHER
from sqlqueue.database.fields import DatabaseNow, ExactField, UnicodeTextField
from sqlqueue.models.topic import TOPIC_COLUMN

# Whether a message is in flight: together with others of its process, or alone. Higher values are alone, too.
IN_FLIGHT = [(NOT_IN_FLIGHT, _("no")), (TOGETHER, _("together")), (ALONE, _("alone"))]


class DeliveryStateQuerySet(models.QuerySet["DeliveryState"]):
    """Queries of the delivery states."""

    def unsettled(self) -> DeliveryStateQuerySet:
        """Return those that are not acked."""
        return self.filter(acked=False)

    def due(self) -> DeliveryStateQuerySet:
        """Return those that wait and whose time has come."""
        return self.unsettled().filter(in_flight=NOT_IN_FLIGHT, invisible_until__lte=DatabaseNow())


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
