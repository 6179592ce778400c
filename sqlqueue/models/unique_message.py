"""The last unique message of each key."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue.core.keys import ID_LENGTH, KEY_LENGTH
from sqlqueue.database.fields import DatabaseNow, ExactField
from sqlqueue.models.topic import TOPIC_COLUMN

DIGEST_LENGTH = 64  # hexadecimal digits of SHA-256


class UniqueMessage(models.Model):
    """The id of the message that was last published with `unique_for` under a topic and key, and when. A publisher of
    another one locks this row first, whether the message is still pending or not. The row may go once it is not.

    digest: of topic and key. The primary key is short, and it is the only one: InnoDB locks no gap for it.
    """

    digest = ExactField(_("digest"), primary_key=True, max_length=DIGEST_LENGTH)
    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    partition_key = ExactField(_("key"), max_length=KEY_LENGTH)
    message_id = ExactField(_("id"), max_length=ID_LENGTH)
    published_at = models.DateTimeField(_("published at"), db_default=DatabaseNow())

    class Meta:
        db_table = "sqlqueue_unique_message"
        verbose_name = _("unique message")
        verbose_name_plural = _("unique messages")

    def __str__(self) -> str:
        return f"{self.message_id} of {self.topic}, key {self.partition_key}"
