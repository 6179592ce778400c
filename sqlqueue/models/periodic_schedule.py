"""Periodic schedules: one row for each, with what it publishes and how far its ticks are."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue.core.periodic import DIGEST_LENGTH, SCHEDULE_LENGTH
from sqlqueue.database.fields import DatabaseNow, ExactField, UnicodeTextField

SUPERSEDED = 20  # definitions that a schedule remembers


class PeriodicSchedule(models.Model):
    """A schedule of `@periodic` or SQLQUEUE["SCHEDULES"], as the consumer processes have declared it. Whichever of them
    publishes a tick moves `ticked_to` in the same transaction, so that each tick is published once. A schedule whose
    definition no process has renewed until `attended_until` is no longer in the code, or no process runs."""

    name = ExactField(_("name"), max_length=SCHEDULE_LENGTH, primary_key=True)
    definition = UnicodeTextField(_("definition"))
    digest = ExactField(_("digest"), max_length=DIGEST_LENGTH)
    superseded = ExactField(
        _("superseded"),
        max_length=SUPERSEDED * (DIGEST_LENGTH + 1),
        db_default="",
        help_text=_("digests of the definitions that this one has replaced"),
    )
    paused = models.BooleanField(_("paused"), db_default=False)
    declared_at = models.DateTimeField(_("declared at"), db_default=DatabaseNow())
    attended_until = models.DateTimeField(_("attended until"))
    ticked_to = models.DateTimeField(
        _("ticked to"), help_text=_("all ticks up to this time are published or passed over")
    )
    next_tick = models.DateTimeField(_("next tick"))
    last_tick = models.DateTimeField(_("last tick"), null=True)
    last_published_at = models.DateTimeField(_("last published at"), null=True)
    refusal = UnicodeTextField(_("refusal"), null=True)

    class Meta:
        db_table = "sqlqueue_periodic_schedule"
        verbose_name = _("periodic schedule")
        verbose_name_plural = _("periodic schedules")
        permissions = [
            ("pause_periodicschedule", _("Can pause and resume periodic schedules")),
            ("run_periodicschedule", _("Can run periodic schedules now")),
        ]

    def __str__(self) -> str:
        return self.name
