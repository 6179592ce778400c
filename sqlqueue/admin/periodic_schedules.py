"""Periodic schedules: the list, and the page of one with what it will do in the next week."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST

from sqlqueue.admin.actions.base import log_action
from sqlqueue.admin.cells import code, tag
from sqlqueue.admin.lists import KeysetChangeList
from sqlqueue.admin.pages import may, require, show
from sqlqueue.admin.pausing import PausableAdmin
from sqlqueue.database.log import current_log
from sqlqueue.exceptions import SqlqueueError
from sqlqueue.models import PeriodicSchedule
from sqlqueue.operations.periodic import pause, resume, run_now
from sqlqueue.stats.moments import moment
from sqlqueue.stats.periodic import schedules, upcoming

DAYS_SHOWN = 7
MOST_TICKS_SHOWN = 100

STATES = {
    "active": gettext_lazy("active"),
    "paused": gettext_lazy("paused"),
    "refused": gettext_lazy("refused"),
    "undeclared": gettext_lazy("in no running process"),
}
MISSED = {
    "last": gettext_lazy("the last one is published"),
    "all": gettext_lazy("all are published"),
    "skip": gettext_lazy("none is published"),
}


@admin.register(PeriodicSchedule)
class PeriodicScheduleAdmin(PausableAdmin):
    """The list of periodic schedules by name."""

    list_display = ("name", "state", "recurrence", "topic", "last_run", "next_run")
    list_filter = ("paused",)
    search_fields = ("=name",)
    key = ("name",)

    def get_page(self, request: HttpRequest, changes: KeysetChangeList) -> list[Any]:
        """Return the rows of a page, each with its status; one statement more."""
        page = super().get_page(request, changes)
        statuses = {one.name: one for one in schedules(changes.log)}
        for row in page:
            row.status = statuses.get(row.name)  # None: it was removed just now
        return page

    @admin.display(description=gettext_lazy("state"))
    def state(self, schedule: Any) -> str:
        """Show unusual states only."""
        status = schedule.status
        return "" if status is None or status.state == "active" else tag(STATES[status.state])

    @admin.display(description=gettext_lazy("when"))
    def recurrence(self, schedule: Any) -> str:
        """Show the cron expression with its time zone, or the interval."""
        return code(schedule.status.recurrence if schedule.status else "")

    @admin.display(description=gettext_lazy("topic"))
    def topic(self, schedule: Any) -> str:
        """Show the topic of its ticks."""
        return schedule.status.topic if schedule.status else "–"

    @admin.display(description=gettext_lazy("last tick"))
    def last_run(self, schedule: Any) -> str:
        """Show the due time of the last tick."""
        return moment(schedule.status and schedule.status.last_tick)

    @admin.display(description=gettext_lazy("next tick"))
    def next_run(self, schedule: Any) -> str:
        """Show the due time of the next tick."""
        return moment(schedule.status and schedule.status.next_tick)

    def get_urls(self) -> list[URLPattern]:
        """Add the URL of the button that runs a schedule now."""
        return [self.row_path("run", require_POST(self.run_view)), *super().get_urls()]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show a schedule, and its ticks of the next week."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        row = self.get_row(request, object_id)
        status = next((one for one in schedules(current_log()) if one.name == row.name), None)
        if status is None:
            raise Http404(_("This row does not exist: it may have been removed."))
        ticks = upcoming(current_log(), DAYS_SHOWN, row.name, MOST_TICKS_SHOWN + 1)
        pausing = self.has_pause_permission(request)
        context = {
            "row": row,
            "status": status,
            "state": STATES[status.state],
            "missed": MISSED.get(status.missed, ""),
            "ticks": [moment(tick.due) for tick in ticks[:MOST_TICKS_SHOWN]],
            "more": len(ticks) > MOST_TICKS_SHOWN,
            "pause_url": self.row_url("pause", row) if pausing else "",
            "resume_url": self.row_url("resume", row) if pausing else "",
            "run_url": self.row_url("run", row) if may(request, "run_periodicschedule") else "",
            **(extra_context or {}),
        }
        return show(self, request, "periodic_schedule", row.name, context)

    def run_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Publish what a schedule publishes, now."""
        require(request, "run_periodicschedule")
        row = self.get_row(request, object_id)
        try:
            published = run_now(current_log(), row.name)
        except SqlqueueError as error:
            self.message_user(request, str(error), messages.ERROR)
        else:
            text = _("Published %(id)s.") % {"id": published.id}
            log_action(request, [row], CHANGE, text)
            self.message_user(request, text, messages.SUCCESS)
        return HttpResponseRedirect(self.row_url("change", row))

    def set_paused(self, row: Any, paused: bool) -> bool:
        """Pause or resume a schedule; return whether that changed anything."""
        return (pause if paused else resume)(current_log(), row.name)

    @admin.action(permissions=["pause"], description=gettext_lazy("Pause: no ticks until resumed"))
    def pause_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        """Pause the chosen schedules."""
        self._change(request, list(queryset), True)
