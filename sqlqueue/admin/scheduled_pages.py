"""The page on which a scheduled message can be corrected, and the actions on scheduled messages."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.admin.models import CHANGE
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, re_path, reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sqlqueue.admin.actions.base import OffersActions, chosen_offsets, log_action, run_action
from sqlqueue.admin.actions.scheduled_actions import SCHEDULED_ACTIONS
from sqlqueue.admin.cells import download
from sqlqueue.admin.lists import KeysetAdmin
from sqlqueue.admin.pages import NUMBER, may, require, show
from sqlqueue.admin.scheduled_form import MOST_EDITED, ScheduledForm, with_texts
from sqlqueue.database.log import current_log
from sqlqueue.exceptions import SqlqueueError
from sqlqueue.operations.edit_scheduled import edit
from sqlqueue.stats.bodies import bodies

GONE = gettext_lazy("Message %s is not scheduled any more: it has entered the log, or was taken back.")


class ScheduledPages(OffersActions, KeysetAdmin):
    """A list of scheduled messages, with actions, whose rows have pages of their own."""

    action_classes = SCHEDULED_ACTIONS

    def get_urls(self) -> list[URLPattern]:
        """Add the pages of actions and of bytes."""
        action, body = self.admin_site.admin_view(self.action_view), self.admin_site.admin_view(self.body_view)
        return [
            path("action/<slug:name>/", action, name=f"sqlqueue_{self.opts.model_name}_action"),
            re_path(r"^(?P<number>-?[0-9]+)/body/$", body, name=f"sqlqueue_{self.opts.model_name}_body"),
            *super().get_urls(),
        ]

    def body_view(self, request: HttpRequest, number: str) -> HttpResponse:
        """Return the bytes of a message as a file to save."""
        require(request, f"view_{self.opts.model_name}")
        if not NUMBER.fullmatch(number):
            raise Http404
        return download(self.model, int(number))

    def action_view(self, request: HttpRequest, name: str) -> HttpResponse:
        """Ask for confirmation of an action on the ticked messages, or carry it out."""
        if name not in self.action_classes:
            raise Http404
        action_class = self.action_classes[name]
        require(request, action_class.view_permission, *action_class.permissions)
        action = action_class(chosen_offsets(request), self._url("changelist"))
        return run_action(self, request, action, self._url("action", name))

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Show a message (GET), and change it (POST; the permission to change the model)."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        permission = f"change_{self.opts.model_name}"
        editable = may(request, permission)
        if request.method == "POST":
            require(request, permission)
        key = unquote(object_id)
        message = with_texts(current_log(), int(key)) if NUMBER.fullmatch(key) else None
        if message is None:
            messages.warning(request, GONE % key)
            return HttpResponseRedirect(self._url("changelist"))
        form = ScheduledForm(message, request.POST if request.method == "POST" else None)
        if request.method == "POST" and form.is_valid():
            try:
                edit(current_log(), message.pk, **form.changes)
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
        hidden = message.payload_text is None
        body = bodies(current_log(), self.model, [message.pk]).get(message.pk) if hidden else None
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

    def _url(self, page: str, *args: Any) -> str:
        return reverse(f"{self.admin_site.name}:sqlqueue_{self.opts.model_name}_{page}", args=args)
