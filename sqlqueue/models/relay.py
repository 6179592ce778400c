"""Relays: how far what other databases relay has come."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue.core.keys import ID_LENGTH
from sqlqueue.core.settings import ALIAS_LENGTH
from sqlqueue.database.fields import ExactField


class RelayPosition(models.Model):
    """The last message that has come here from a partition of another database's relay topic: its offset and id there.
    It only rises, in the transaction that adds what has come; so each message is added once."""

    source = ExactField(_("source"), max_length=ALIAS_LENGTH)
    partition = models.IntegerField(_("partition"))
    offset = models.BigIntegerField(_("offset"))
    message_id = ExactField(_("id"), max_length=ID_LENGTH)

    class Meta:
        db_table = "sqlqueue_relay_position"
        verbose_name = _("relay position")
        verbose_name_plural = _("relay positions")
        constraints = [
            # Supports: SELECT …, UPDATE … WHERE source and partition (what has arrived).
            models.UniqueConstraint(fields=["source", "partition"], name="sqlqueue_relay_position_of"),
        ]

    def __str__(self) -> str:
        return f"from {self.source}"
