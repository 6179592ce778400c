"""Replays: requests to deliver dead letters again, with the progress and a button that cancels."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sqlqueue.admin.actions.base import log_action
from sqlqueue.admin.keyset import KeysetAdmin
from sqlqueue.admin.pages import show
from sqlqueue.admin.permissions import may, require
from sqlqueue.conf import settings
from sqlqueue.models import Replay
from sqlqueue.operations.replay_requests import cancel


@admin.register(Replay)
class ReplayAdmin(KeysetAdmin):
    """The list of replays, newest first."""

    list_display = (
        "id",
        "topic",
        "consumer_group",
        "fingerprint",
        "state",
        "progress",
        "ordered_by",
        "created_at",
    )
    list_filter = ("state",)

    @admin.display(description=gettext_lazy("progress"))
    def progress(self, replay: Replay) -> str:
        """Show how many dead letters of how many are done."""
        return _("%(done)d of %(total)d") % {"done": replay.done, "total": replay.total}

    def get_urls(self) -> list[URLPattern]:
        """Add the view that cancels a replay."""
        cancel_view = self.admin_site.admin_view(self.cancel_view)
        return [path("<int:number>/cancel/", cancel_view, name="sqlqueue_replay_cancel"), *super().get_urls()]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Show a replay and its progress."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        replay = self.get_object(request, unquote(object_id))
        if replay is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[attr-defined]
        context = {
            "replay": replay,
            "may_cancel": replay.active and may(request, "replay_message"),
        }
        return show(self, request, "replay", _("Replay of dead letters of %s") % replay.topic, context)

    def cancel_view(self, request: HttpRequest, number: int) -> HttpResponse:
        """Cancel the rest of a replay."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        require(request, "view_replay", "replay_message")
        replay = self.get_queryset(request).filter(pk=number).first()
        if replay is None:
            raise Http404
        if cancel(settings.DATABASE, number):
            sentence = _("Cancelled. What was delivered stays delivered.")
            log_action(request, [replay], CHANGE, sentence)
            messages.success(request, sentence)
        else:
            messages.warning(request, _("There was nothing left to cancel."))
        return HttpResponseRedirect(reverse(f"{self.admin_site.name}:sqlqueue_replay_change", args=[number]))
