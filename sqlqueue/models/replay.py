"""Replays: operator requests to deliver dead letters again."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue.core.fingerprint import LENGTH
from sqlqueue.core.keys import GROUP_LENGTH
from sqlqueue.database.fields import DatabaseNow, ExactField, UnicodeField
from sqlqueue.models.topic import TOPIC_COLUMN

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


class Replay(models.Model):
    """An operator request to deliver dead letters of a topic again: oldest first, at most `rate` a second, and with
    `trial` the rest only once the first one has been acked. Consumer processes carry it out, one at a time."""

    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    consumer_group = ExactField(_("group"), max_length=GROUP_LENGTH, db_default="", help_text=_("empty: each its own"))
    fingerprint = ExactField(_("fingerprint"), max_length=LENGTH, db_default="", help_text=_("empty: any"))
    offsets = models.JSONField(_("offsets"), null=True, help_text=_("only these dead letters; empty: all"))
    through = models.BigIntegerField(_("up to offset"))
    rate = models.FloatField(_("rate"), null=True, help_text=_("messages a second; empty: as fast as it goes"))
    trial = models.BooleanField(_("first one as a trial"), db_default=False)
    state = ExactField(_("state"), max_length=10, choices=STATES, db_default=NEW)
    total = models.BigIntegerField(_("to do"), db_default=0)
    done = models.BigIntegerField(_("done"), db_default=0)
    reached = models.BigIntegerField(_("reached"), db_default=0)
    trial_offset = models.BigIntegerField(_("trial's offset"), null=True)
    ordered_by = UnicodeField(_("ordered by"), max_length=150, db_default="")
    note = UnicodeField(_("note"), max_length=300, db_default="")
    created_at = models.DateTimeField(_("created at"), db_default=DatabaseNow())
    updated_at = models.DateTimeField(_("updated at"), db_default=DatabaseNow())

    class Meta:
        db_table = "sqlqueue_replay"
        verbose_name = _("replay")
        verbose_name_plural = _("replays")
        indexes = [
            # Supports: SELECT … WHERE state IN (…) ORDER BY id (what is to be carried out).
            models.Index(fields=["state"], name="sqlqueue_replay_state"),
        ]

    def __str__(self) -> str:
        return f"{self.topic} #{self.pk}"

    @property
    def active(self) -> bool:
        """Whether it is not done, failed or cancelled."""
        return self.state in ACTIVE
