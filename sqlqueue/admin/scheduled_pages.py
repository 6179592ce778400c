"""The page on which a scheduled message can be corrected, and the actions on scheduled messages."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.admin.models import CHANGE
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _

from sqlqueue.admin.actions.base import OffersActions, chosen_offsets, log_action, run_action
from sqlqueue.admin.actions.scheduled_actions import SCHEDULED_ACTIONS
from sqlqueue.admin.bodies import download
from sqlqueue.admin.keyset_sections import SectionedAdmin
from sqlqueue.admin.pages import show
from sqlqueue.admin.permissions import may, require
from sqlqueue.admin.scheduled_form import MOST_EDITED, ScheduledForm, with_texts
from sqlqueue.conf import settings
from sqlqueue.exceptions import SqlqueueError
from sqlqueue.models import ScheduledMessage
from sqlqueue.operations.edit_scheduled import edit
from sqlqueue.stats.bodies import bodies


class ScheduledPages(OffersActions, SectionedAdmin):
    """A list of scheduled messages with actions, whose rows have pages of their own."""

    action_classes = SCHEDULED_ACTIONS

    def get_urls(self) -> list[URLPattern]:
        """Add the pages of actions and of bytes."""
        action, body = self.admin_site.admin_view(self.action_view), self.admin_site.admin_view(self.body_view)
        return [
            path("action/<slug:name>/", action, name="sqlqueue_scheduledmessage_action"),
            path("<int:number>/body/", body, name="sqlqueue_scheduledmessage_body"),
            *super().get_urls(),
        ]

    def body_view(self, request: HttpRequest, number: int) -> HttpResponse:
        """Return the bytes of a scheduled message as a file to save."""
        require(request, "view_scheduledmessage")
        return download(ScheduledMessage, number)

    def action_view(self, request: HttpRequest, name: str) -> HttpResponse:
        """Ask for confirmation of an action on the ticked messages, or carry it out."""
        if name not in SCHEDULED_ACTIONS:
            raise Http404
        action_class = SCHEDULED_ACTIONS[name]
        require(request, action_class.view_permission, *action_class.permissions)
        site = self.admin_site.name
        action = action_class(chosen_offsets(request), reverse(f"{site}:sqlqueue_scheduledmessage_changelist"))
        return run_action(self, request, action, reverse(f"{site}:sqlqueue_scheduledmessage_action", args=[name]))

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Show a scheduled message (GET), and change it (POST; permission `change_scheduledmessage`)."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        editable = may(request, "change_scheduledmessage")
        if request.method == "POST":
            require(request, "change_scheduledmessage")
        key = unquote(object_id)
        is_number = key.isascii() and key.isdigit() and len(key) < 19
        message = with_texts(settings.DATABASE, int(key)) if is_number else None
        if message is None:
            gone = _("Message %s is not scheduled any more: it has entered the log, or was taken back.")
            messages.warning(request, gone % key)
            return HttpResponseRedirect(reverse(f"{self.admin_site.name}:sqlqueue_scheduledmessage_changelist"))
        form = ScheduledForm(message, request.POST if request.method == "POST" else None)
        if request.method == "POST" and form.is_valid():
            try:
                edit(settings.DATABASE, message.pk, **form.changes)
            except SqlqueueError as error:
                form.add_error(None, str(error))
            else:
                labels = ", ".join(str(form.fields[name].label) for name in form.changed_data)
                sentence = _("Changed: %s.") % labels if labels else _("Accepted as it is.")
                log_action(request, [message], CHANGE, sentence)
                messages.success(request, sentence)
                return HttpResponseRedirect(request.path)
        if not editable:
            for field in form.fields.values():
                field.disabled = True
        hidden = message.payload_text is None  # type: ignore[attr-defined]
        body = bodies(settings.DATABASE, ScheduledMessage, [message.pk]).get(message.pk) if hidden else None
        context = {
            "row": message,
            "form": form,
            "editable": editable,
            "body": body,
            "too_long": hidden and body is None,
            "most": MOST_EDITED,
            "actions": self.permitted_actions(request),
        }
        return show(self, request, "scheduled", _("Scheduled message %d") % message.pk, context)
