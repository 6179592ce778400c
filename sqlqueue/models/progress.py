"""Progress of deliveries whose handlers are running."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue.core.keys import GROUP_LENGTH
from sqlqueue.database.fields import DatabaseNow, ExactField, UnicodeField
from sqlqueue.models.topic import TOPIC_COLUMN

NOTE_LENGTH = 255


class Progress(models.Model):
    """How far a handler says it is (`delivery.progress`). It counts only while the partition has this fencing token: a
    handler of a former owner may still run. The settle of the delivery deletes it."""

    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    consumer_group = ExactField(_("group"), max_length=GROUP_LENGTH)
    message_offset = models.BigIntegerField(_("offset"))
    fencing_token = models.BigIntegerField(_("fencing token"))
    serial = models.BigIntegerField(_("serial"), help_text=_("of the attempt, in its process"))
    done = models.FloatField(_("done"))
    total = models.FloatField(_("total"), null=True)
    note = UnicodeField(_("note"), max_length=NOTE_LENGTH, db_default="")
    updated_at = models.DateTimeField(_("updated at"), db_default=DatabaseNow())

    class Meta:
        db_table = "sqlqueue_progress"
        verbose_name = _("progress")
        verbose_name_plural = _("progress")
        constraints = [
            # Supports: the upserts of a handler; SELECT … WHERE message_offset (the status of a message); the deletes
            # of a settle.
            models.UniqueConstraint(fields=["message_offset", "consumer_group"], name="sqlqueue_progress_message"),
        ]
        indexes = [
            # Supports: SELECT … WHERE updated_at <= ? ORDER BY updated_at LIMIT (collect: what a killed process left).
            models.Index(fields=["updated_at"], name="sqlqueue_progress_updated"),
        ]

    def __str__(self) -> str:
        return f"{self.consumer_group} of {self.topic}@{self.message_offset}: {self.done}"
