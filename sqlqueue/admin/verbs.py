"""What the pages of topics and groups have in common: to be paused and resumed."""

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

from sqlqueue.admin.ordered import OrderedAdmin
from sqlqueue.admin.orders import note
from sqlqueue.admin.permissions import may, require
from sqlqueue.conf import settings
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log.pause import pause, resume
from sqlqueue.models import ConsumerGroup, Topic

Pausable = ConsumerGroup | Topic


class PausableAdmin(OrderedAdmin):
    """Topics or groups: to be paused and resumed by whoever has the permission `pause_…` on them, only by POST."""

    actions = ("pause_selected", "resume_selected")

    def get_urls(self) -> list[URLPattern]:
        """Add the buttons' addresses."""
        own = [
            self.address("pause", require_POST(self.pause_view)),
            self.address("resume", require_POST(self.resume_view)),
        ]
        return own + super().get_urls()

    def address(self, name: str, view: Callable[..., HttpResponse]) -> URLPattern:
        """Return the URL of a view of one row."""
        full = f"{self.opts.app_label}_{self.opts.model_name}_{name}"
        return path(f"<path:object_id>/{name}/", self.admin_site.admin_view(view), name=full)

    def row(self, request: HttpRequest, object_id: str) -> Any:
        """Return a row; raise 404 if there is none."""
        found = self.get_object(request, unquote(object_id))
        if found is None:
            raise Http404(_("There is no such row: it may have been removed."))
        return found

    def page(self, name: str, row: Pausable) -> str:
        """Return the address of a row's page."""
        full = f"admin:{self.opts.app_label}_{self.opts.model_name}_{name}"
        return reverse(full, args=[quote(row.pk)], current_app=self.admin_site.name)

    def has_pause_permission(self, request: HttpRequest) -> bool:
        """Whether the user may pause and resume."""
        return may(request, f"pause_{self.opts.model_name}")

    def pause_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Pause one."""
        return self._one(request, object_id, True)

    def resume_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Resume one."""
        return self._one(request, object_id, False)

    def _one(self, request: HttpRequest, object_id: str, paused: bool) -> HttpResponse:
        require(request, f"pause_{self.opts.model_name}")
        row = self.row(request, object_id)
        self._set(request, [row], paused)
        return HttpResponseRedirect(self.page("change", row))

    @admin.action(permissions=["pause"], description=gettext_lazy("Pause: nobody reads them until they are resumed"))
    def pause_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        """Pause those that were chosen."""
        self._set(request, list(queryset), True)

    @admin.action(permissions=["pause"], description=gettext_lazy("Resume"))
    def resume_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        """Resume those that were chosen."""
        self._set(request, list(queryset), False)

    def _set(self, request: HttpRequest, rows: list[Pausable], paused: bool) -> None:
        for row in rows:
            place = (row.topic, row.consumer_group) if isinstance(row, ConsumerGroup) else (row.name,)
            try:
                changed = (pause if paused else resume)(settings.DATABASE, *place)
            except ConfigurationError as error:  # it was removed in between
                self.message_user(request, str(error), messages.ERROR)
                continue
            if not changed:
                text = _("%(what)s was paused already.") if paused else _("%(what)s was not paused.")
                self.message_user(request, text % {"what": row}, messages.WARNING)
                continue
            note(request, [row], CHANGE, _("Paused.") if paused else _("Resumed."))
            text = _("%(what)s is paused: what runs goes on to its end.") if paused else _("%(what)s goes on.")
            self.message_user(request, text % {"what": row}, messages.SUCCESS)
