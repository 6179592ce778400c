"""Periodic schedules: the list, and the page of one with what it will do in the next week."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib import admin
from django.http import Http404, HttpRequest
from django.utils.translation import gettext_lazy as _

from sqlqueue.admin.cells import code, tag
from sqlqueue.admin.lists import KeysetChangeList
from sqlqueue.admin.operation import Done, OperatedAdmin, Operation, Pause, Resume
from sqlqueue.models import PeriodicSchedule
from sqlqueue.operations.periodic import pause, resume, run_now, schedules, upcoming
from sqlqueue.stats.texts import moment

DAYS_SHOWN = 7
MOST_TICKS_SHOWN = 100

STATES = {
    "active": _("active"),
    "paused": _("paused"),
    "refused": _("refused"),
    "undeclared": _("in no running process"),
}
MISSED = {
    "last": _("the last one is published"),
    "all": _("all are published"),
    "skip": _("none is published"),
}


class RunNow(Operation):
    """Publish what a schedule publishes, now."""

    name, label = "run", _("Run now")
    permissions = ("run_periodicschedule",)
    asks = several = False

    def run(self) -> Done:
        """Publish it."""
        published = run_now(self.log, self.rows[0].name)
        return Done(_("Published %(id)s.") % {"id": published.id}, self.rows)


@admin.register(PeriodicSchedule)
class PeriodicScheduleAdmin(OperatedAdmin):
    """The list of periodic schedules by name, and the page of one."""

    list_display = ("name", "state", "recurrence", "topic", "last_run", "next_run")
    list_filter = ("paused",)
    search_fields = ("=name",)
    key = ("name",)
    operations = (Pause, Resume, RunNow)
    page_template = "periodic_schedule"

    def get_page(self, request: HttpRequest, changes: KeysetChangeList) -> list[Any]:
        """Return the rows of a page, each with its status; one statement more."""
        rows = super().get_page(request, changes)
        statuses = {one.name: one for one in schedules(changes.log)}
        for row in rows:
            row.status = statuses.get(row.name)  # None: it was removed just now
        return rows

    @admin.display(description=_("state"))
    def state(self, schedule: Any) -> str:
        """Show unusual states only."""
        status = schedule.status
        return "" if status is None or status.state == "active" else tag(STATES[status.state])

    @admin.display(description=_("when"))
    def recurrence(self, schedule: Any) -> str:
        """Show the cron expression with its time zone, or the interval."""
        return code(schedule.status.recurrence if schedule.status else "")

    @admin.display(description=_("topic"))
    def topic(self, schedule: Any) -> str:
        """Show the topic of its ticks."""
        return schedule.status.topic if schedule.status else "–"

    @admin.display(description=_("last tick"))
    def last_run(self, schedule: Any) -> str:
        """Show the due time of the last tick."""
        return moment(schedule.status and schedule.status.last_tick)

    @admin.display(description=_("next tick"))
    def next_run(self, schedule: Any) -> str:
        """Show the due time of the next tick."""
        return moment(schedule.status and schedule.status.next_tick)

    def set_paused(self, row: PeriodicSchedule, paused: bool) -> bool:
        """Let a schedule publish nothing, or let it again."""
        return (pause if paused else resume)(self.log, row.name)

    def page(self, request: HttpRequest, row: Any) -> tuple[object, Mapping[str, Any]]:
        """Return the title, and the schedule's status and ticks of the next week."""
        status = next((one for one in schedules(self.log) if one.name == row.name), None)
        if status is None:
            raise Http404(_("This row does not exist: it may have been removed."))
        ticks = upcoming(self.log, DAYS_SHOWN, row.name, MOST_TICKS_SHOWN + 1)
        return row.name, {
            "status": status,
            "state": STATES[status.state],
            "missed": MISSED.get(status.missed, ""),
            "ticks": [moment(tick.due) for tick in ticks[:MOST_TICKS_SHOWN]],
            "more": len(ticks) > MOST_TICKS_SHOWN,
        }
