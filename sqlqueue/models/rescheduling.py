"""Reschedulings: operator requests to reschedule many deliveries."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue.core.keys import GROUP_LENGTH, KEY_LENGTH
from sqlqueue.database.fields import DatabaseNow, ExactField, UnicodeField
from sqlqueue.models.replay import ACTIVE, NEW, STATES, TRIAL
from sqlqueue.models.topic import TOPIC_COLUMN

FAILING, POSTPONED = "failing", "postponed"
WHICH = [("", _("all that wait for their time")), (FAILING, _("failing")), (POSTPONED, _("postponed"))]
WITHOUT_A_TRIAL = [one for one in STATES if one[0] != TRIAL]
ERROR_LENGTH = 200


class Rescheduling(models.Model):
    """An operator request to make waiting deliveries of a group due: in the order of partition, priority and offset, at
    most `rate` a second. Consumer processes carry it out, one at a time; the row stores the last delivery that was
    examined, so that each is examined once."""

    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    consumer_group = ExactField(_("group"), max_length=GROUP_LENGTH)
    which = ExactField(_("which"), max_length=10, choices=WHICH, db_default="")
    error = UnicodeField(
        _("error"), max_length=ERROR_LENGTH, db_default="", help_text=_("the last error has this in it; empty: any")
    )
    partition_key = ExactField(_("key"), max_length=KEY_LENGTH, db_default="", help_text=_("empty: any"))
    above = models.BigIntegerField(_("above offset"), db_default=0)
    through = models.BigIntegerField(_("up to offset"))
    delay = models.FloatField(_("delay"), db_default=0.0, help_text=_("seconds"))
    attempts = models.IntegerField(_("attempts so far"), null=True, help_text=_("empty: as it is"))
    rate = models.FloatField(_("rate"), null=True, help_text=_("deliveries a second; empty: as fast as it goes"))
    state = ExactField(_("state"), max_length=10, choices=WITHOUT_A_TRIAL, db_default=NEW)
    total = models.BigIntegerField(_("to do"), db_default=0)
    done = models.BigIntegerField(_("done"), db_default=0)
    at_partition = models.IntegerField(_("at partition"), db_default=-1)
    at_priority = models.SmallIntegerField(_("at priority"), db_default=-1)
    at_offset = models.BigIntegerField(_("at offset"), db_default=-1)
    ordered_by = UnicodeField(_("ordered by"), max_length=150, db_default="")
    note = UnicodeField(_("note"), max_length=300, db_default="")
    created_at = models.DateTimeField(_("created at"), db_default=DatabaseNow())
    updated_at = models.DateTimeField(_("updated at"), db_default=DatabaseNow())

    class Meta:
        db_table = "sqlqueue_rescheduling"
        verbose_name = _("rescheduling")
        verbose_name_plural = _("reschedulings")
        indexes = [
            # Supports: SELECT … WHERE state IN (…) ORDER BY id (what is to be carried out).
            models.Index(fields=["state"], name="sqlqueue_rescheduling_state"),
        ]

    def __str__(self) -> str:
        return f"{self.consumer_group} of {self.topic} #{self.pk}"

    @property
    def active(self) -> bool:
        """Whether it is not done, failed or cancelled."""
        return self.state in ACTIVE
