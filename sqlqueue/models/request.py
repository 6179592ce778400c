"""Operator requests: replays of dead letters, and reschedulings of many deliveries."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue.core.keys import GROUP_LENGTH
from sqlqueue.core.outcomes import storable
from sqlqueue.database.fields import DatabaseNow, ExactField, UnicodeField
from sqlqueue.models.topic import TOPIC_COLUMN

REPLAY, RESCHEDULE = "replay", "reschedule"
KINDS = [(REPLAY, _("replay of dead letters")), (RESCHEDULE, _("rescheduling of deliveries"))]
NEW, TRIAL, RUNNING, DONE, FAILED, CANCELLED = "new", "trial", "running", "done", "failed", "cancelled"
ACTIVE = (NEW, TRIAL, RUNNING)
STATES = [
    (NEW, _("waits for a consumer process")),
    (TRIAL, _("the first one is being tried")),
    (RUNNING, _("running")),
    (DONE, _("done")),
    (FAILED, _("failed")),
    (CANCELLED, _("cancelled")),
]
NOTE_LENGTH = 300  # characters; the column's


class Request(models.Model):
    """An operator's request to do something with many messages, at most `rate` a second. Consumer processes carry it
    out, one of them at a time, in steps; the row stores how far it has come, so that each message is taken once.

    options: which of the messages, and what to do with them, as its kind stores it; at_partition, at_priority,
    at_offset: the last one that was examined; trial_offset: of a replay's first message in the log, if it is a trial.
    """

    kind = ExactField(_("kind"), max_length=10, choices=KINDS)
    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    consumer_group = ExactField(_("group"), max_length=GROUP_LENGTH, db_default="", help_text=_("empty: each its own"))
    options = models.JSONField(_("options"))
    through = models.BigIntegerField(_("up to offset"))
    rate = models.FloatField(_("rate"), null=True, help_text=_("messages a second; empty: as fast as it goes"))
    state = ExactField(_("state"), max_length=10, choices=STATES, db_default=NEW)
    total = models.BigIntegerField(_("to do"), db_default=0)
    done = models.BigIntegerField(_("done"), db_default=0)
    at_partition = models.IntegerField(_("at partition"), db_default=-1)
    at_priority = models.SmallIntegerField(_("at priority"), db_default=-1)
    at_offset = models.BigIntegerField(_("at offset"), db_default=0)
    trial_offset = models.BigIntegerField(_("trial's offset"), null=True)
    ordered_by = UnicodeField(_("ordered by"), max_length=150, db_default="")
    note = UnicodeField(_("note"), max_length=300, db_default="")
    created_at = models.DateTimeField(_("created at"), db_default=DatabaseNow())
    updated_at = models.DateTimeField(_("updated at"), db_default=DatabaseNow())

    class Meta:
        db_table = "sqlqueue_request"
        verbose_name = _("request")
        verbose_name_plural = _("requests")
        indexes = [
            # Supports: SELECT … WHERE state IN (…) ORDER BY id (what is to be carried out).
            models.Index(fields=["state"], name="sqlqueue_request_state"),
        ]

    def __str__(self) -> str:
        return f"{self.topic} #{self.pk}"

    @property
    def active(self) -> bool:
        """Whether it is not done, failed or cancelled."""
        return self.state in ACTIVE


def as_note(text: str) -> str:
    """Return a text as the column `note` can store it."""
    return storable(text)[:NOTE_LENGTH]
