"""Receipts: how deliveries ended."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue.core.keys import GROUP_LENGTH
from sqlqueue.database.fields import ExactField
from sqlqueue.models.partition_lease import HOLDER_LENGTH
from sqlqueue.models.topic import TOPIC_COLUMN


class Receipt(models.Model):
    """One delivery's outcome, written with its settle, as far as the topic's history asks for it. Or, with the outcome
    `replayed`, that its dead letter was replayed: `worker` is the id of the copy, `serial` the dead letter's offset."""

    consumer_group = ExactField(_("group"), max_length=GROUP_LENGTH)
    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    partition = models.IntegerField(_("partition"))
    message_offset = models.BigIntegerField(_("offset"))
    outcome = ExactField(_("outcome"), max_length=20)
    attempts = models.IntegerField(_("attempt"))
    started_at = models.DateTimeField(_("started at"))
    finished_at = models.DateTimeField(_("finished at"))
    worker = ExactField(_("worker"), max_length=HOLDER_LENGTH)
    serial = models.BigIntegerField(_("serial"))

    class Meta:
        db_table = "sqlqueue_receipt"
        verbose_name = _("receipt")
        verbose_name_plural = _("receipts")
        constraints = [
            # Supports: a settle that is run again, because its reply was lost, writes no second receipt.
            models.UniqueConstraint(fields=["worker", "serial"], name="sqlqueue_receipt_serial"),
        ]
        indexes = [
            # Supports: SELECT … WHERE message_offset = ? (the outcomes of a message in each group).
            models.Index(fields=["message_offset", "consumer_group"], name="sqlqueue_receipt_message"),
        ]

    def __str__(self) -> str:
        return f"{self.consumer_group}@{self.message_offset}: {self.outcome}"
