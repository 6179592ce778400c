"""What the pages of topics, groups and periodic schedules have in common: they can be paused and resumed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE
from django.contrib.admin.utils import quote, unquote
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST

from sqlqueue.admin.actions.base import log_action
from sqlqueue.admin.lists import KeysetAdmin
from sqlqueue.admin.pages import may, require
from sqlqueue.database.log import current_log
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.models import ConsumerGroup, PeriodicSchedule, Topic
from sqlqueue.operations.pause import pause, resume

Pausable = ConsumerGroup | PeriodicSchedule | Topic


class PausableAdmin(KeysetAdmin):
    """A list of topics, groups or schedules, with actions and buttons that pause and resume them. Both need the
    permission `pause_topic`, `pause_consumergroup` or `pause_periodicschedule`, and a POST request."""

    actions = ("pause_selected", "resume_selected")

    def get_urls(self) -> list[URLPattern]:
        """Add the URLs of the buttons."""
        own = [
            self.row_path("pause", require_POST(self.pause_view)),
            self.row_path("resume", require_POST(self.resume_view)),
        ]
        return own + super().get_urls()

    def row_path(self, name: str, view: Callable[..., HttpResponse]) -> URLPattern:
        """Return the URL pattern of a view of one row."""
        url_name = f"{self.opts.app_label}_{self.opts.model_name}_{name}"
        return path(f"<path:object_id>/{name}/", self.admin_site.admin_view(view), name=url_name)

    def get_row(self, request: HttpRequest, object_id: str) -> Any:
        """Return a row. Raises Http404 if there is none."""
        found = self.get_object(request, unquote(object_id))
        if found is None:
            raise Http404(_("This row does not exist: it may have been removed."))
        return found

    def row_url(self, name: str, row: Pausable) -> str:
        """Return the URL of a page of a row."""
        url_name = f"admin:{self.opts.app_label}_{self.opts.model_name}_{name}"
        return reverse(url_name, args=[quote(row.pk)], current_app=self.admin_site.name)

    def has_pause_permission(self, request: HttpRequest) -> bool:
        """Tell whether the user may pause and resume."""
        return may(request, f"pause_{self.opts.model_name}")

    def pause_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Pause a row."""
        return self._change_one(request, object_id, True)

    def resume_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Resume a row."""
        return self._change_one(request, object_id, False)

    def _change_one(self, request: HttpRequest, object_id: str, paused: bool) -> HttpResponse:
        require(request, f"pause_{self.opts.model_name}")
        row = self.get_row(request, object_id)
        self._change(request, [row], paused)
        return HttpResponseRedirect(self.row_url("change", row))

    @admin.action(permissions=["pause"], description=gettext_lazy("Pause: not read until resumed"))
    def pause_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        """Pause the chosen rows."""
        self._change(request, list(queryset), True)

    @admin.action(permissions=["pause"], description=gettext_lazy("Resume"))
    def resume_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        """Resume the chosen rows."""
        self._change(request, list(queryset), False)

    def set_paused(self, row: Any, paused: bool) -> bool:
        """Pause or resume a row; return whether that changed anything."""
        names = (row.topic, row.consumer_group) if isinstance(row, ConsumerGroup) else (row.name,)
        return (pause if paused else resume)(current_log(), *names)

    def _change(self, request: HttpRequest, rows: list[Pausable], paused: bool) -> None:
        for row in rows:
            try:
                changed = self.set_paused(row, paused)
            except ConfigurationError as error:  # it was removed meanwhile
                self.message_user(request, str(error), messages.ERROR)
                continue
            if not changed:
                text = _("%(what)s was already paused.") if paused else _("%(what)s was not paused.")
                self.message_user(request, text % {"what": row}, messages.WARNING)
                continue
            log_action(request, [row], CHANGE, _("Paused.") if paused else _("Resumed."))
            text = _("%(what)s is paused. Running handlers finish.") if paused else _("%(what)s is resumed.")
            self.message_user(request, text % {"what": row}, messages.SUCCESS)
