"""Relays: messages on their way from one shard to another."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue.core.keys import GROUP_LENGTH, ID_LENGTH, KEY_LENGTH
from sqlqueue.core.setting.shards import SHARD_LENGTH
from sqlqueue.database.fields import DatabaseNow, ExactField, UnicodeTextField
from sqlqueue.models.topic import TOPIC_COLUMN


class RelayedMessage(models.Model):
    """A message of another shard, published in a transaction of this one. It leaves this table when it has arrived.
    Payload and headers are JSON text, which no server is to read before it gets there. One that its shard refuses stays
    with the `refusal`."""

    shard = ExactField(_("shard"), max_length=SHARD_LENGTH)
    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    partition_key = ExactField(_("key"), max_length=KEY_LENGTH)
    message_id = ExactField(_("id"), max_length=ID_LENGTH)
    payload = UnicodeTextField(_("payload"))
    headers = UnicodeTextField(_("headers"), null=True)
    priority = models.SmallIntegerField(_("priority"))
    target_group = ExactField(_("target group"), max_length=GROUP_LENGTH)
    body = models.BinaryField(_("body"), null=True)
    expires_after = models.FloatField(
        _("expires after"), null=True, help_text=_("seconds from when it is due; empty: never")
    )
    due_at = models.DateTimeField(_("due at"), null=True, help_text=_("empty: at once"))
    created_at = models.DateTimeField(_("created at"), db_default=DatabaseNow())
    refused = models.BooleanField(_("refused"), db_default=False)
    refusal = UnicodeTextField(_("refusal"), null=True)

    class Meta:
        db_table = "sqlqueue_relayed_message"
        verbose_name = _("relayed message")
        verbose_name_plural = _("relayed messages")
        indexes = [
            # Supports: SELECT … WHERE refused = 0 AND shard = … AND id > … ORDER BY id LIMIT (the relay).
            models.Index(fields=["refused", "shard", "id"], name="sqlqueue_relayed_order"),
            # Supports: SELECT … WHERE topic, partition_key and message_id (get_status, cancel, cancel_all).
            models.Index(fields=["topic", "partition_key", "message_id"], name="sqlqueue_relayed_id"),
        ]

    def __str__(self) -> str:
        return f"{self.topic} for shard {self.shard}"


class RelayArrival(models.Model):
    """What has arrived here from another shard and may still be in its table: number and id of each, in a JSON array.
    What adds messages that were relayed changes the version, on the condition that it is still what it was before they
    were read there; so each is added once."""

    source = ExactField(_("shard"), max_length=SHARD_LENGTH, primary_key=True)
    version = models.BigIntegerField(_("version"), db_default=0)
    arrived = UnicodeTextField(_("arrived"), null=True)

    class Meta:
        db_table = "sqlqueue_relay_arrival"
        verbose_name = _("relay arrival")
        verbose_name_plural = _("relay arrivals")

    def __str__(self) -> str:
        return f"from {self.source}"
