"""Scheduled messages: those that wait for their time and those that the log has refused, and the page that corrects
one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, DELETION
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, re_path
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sqlqueue.admin.cells import code, download, harmless, key_id, show_previews, tag
from sqlqueue.admin.lists import KeysetChangeList
from sqlqueue.admin.operation import Done, OperatedAdmin, Operation, log_done
from sqlqueue.admin.pages import NUMBER, may, require, show
from sqlqueue.admin.scheduled_form import MOST_EDITED, ScheduledForm, with_texts
from sqlqueue.exceptions import SqlqueueError
from sqlqueue.models import ScheduledMessage
from sqlqueue.operations.edit_scheduled import edit, run_now, withdraw
from sqlqueue.operations.reschedule import Changed
from sqlqueue.stats.bodies import bodies


class ScheduledOperation(Operation):
    """An operation on scheduled messages."""

    change: ClassVar[Callable[..., Changed]]
    text: ClassVar[str | Promise]  # what was done, with placeholders for the rows `done` and `left`

    def run(self, form: Any) -> Done:
        """Call the function with the log and the rows' numbers."""
        done = type(self).change(self.log, [row.pk for row in self.rows])
        text = str(self.text) % {"done": done.changed, "left": done.left}
        return Done(text, self.rows, self.model_admin.url("changelist"))


class RunNow(ScheduledOperation):
    """Make scheduled messages due."""

    name, label = "run-now", gettext_lazy("Run now")
    explanation = gettext_lazy(
        "The messages become due now, and a consumer process moves them into the log. Messages that the log has "
        "refused are tried again."
    )
    permissions = ("change_scheduledmessage",)
    change = staticmethod(run_now)
    text = gettext_lazy("Due now: %(done)d. Left alone, because they are entering the log: %(left)d.")


class TakeBack(ScheduledOperation):
    """Delete messages from the schedule."""

    name, label = "take-back", gettext_lazy("Take back")
    explanation = gettext_lazy(
        "The messages are deleted from the schedule for good, and never enter the log. A message that enters the log "
        "meanwhile stays there."
    )
    permissions = ("delete_scheduledmessage",)
    dangerous = True
    change = staticmethod(withdraw)
    text = gettext_lazy("Taken back: %(done)d. Left alone, because they are entering the log: %(left)d.")
    flag = DELETION


@admin.register(ScheduledMessage)
class ScheduledMessageAdmin(OperatedAdmin):
    """The list of scheduled messages: refused ones first, with the reason, and then by the time at which they are due;
    and the page of one."""

    list_display = ("id", "topic", "state", "due_at", "preview", "key_and_id")
    key = ("due_at", "id")
    list_filter = ("refused",)
    search_fields = ("=id",)
    operations = (RunNow, TakeBack)

    def sections(self) -> Sequence[Q]:
        """Return the conditions for refused and waiting messages. Index: one that begins with `refused`."""
        return [Q(refused=True), Q(refused=False)]

    def get_page(self, request: HttpRequest, changes: KeysetChangeList) -> list[Any]:
        """Return a page, each row with the beginning of its payload."""
        found = super().get_page(request, changes)
        show_previews(self.model, found)
        return found

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the rows without payloads: a page shows only their beginnings."""
        return super().get_queryset(request).defer("payload", "headers", "body")

    @admin.display(description=gettext_lazy("payload"))
    def preview(self, message: Any) -> str:
        """Show the beginning of the payload."""
        return code(message.preview)

    @admin.display(description=gettext_lazy("key and id"))
    def key_and_id(self, message: Any) -> str:
        """Show key and id, cut where they are long, and the target group, if there is one."""
        html = key_id(message.partition_key, message.message_id)
        if not message.target_group:
            return html
        return format_html("{}<div>{}</div>", html, _("for %s alone") % message.target_group)

    @admin.display(description=gettext_lazy("state"))
    def state(self, message: Any) -> str:
        """Show why it was refused, or that it waits."""
        if message.refused:
            return format_html("{} {}", tag(_("refused")), Truncator(harmless(message.refusal or "")).chars(300))
        return _("waits")

    def get_urls(self) -> list[URLPattern]:
        """Add the download of bytes."""
        body = self.admin_site.admin_view(self.body_view)
        return [
            re_path(r"^(?P<number>-?[0-9]+)/body/$", body, name="sqlqueue_scheduledmessage_body"),
            *super().get_urls(),
        ]

    def body_view(self, request: HttpRequest, number: str) -> HttpResponse:
        """Return the bytes of a message as a file to save."""
        require(request, "view_scheduledmessage")
        if not NUMBER.fullmatch(number):
            raise Http404
        return download(self.log, self.model, int(number))

    def gone(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Lead to the list, and say that the message is not scheduled any more."""
        text = _("Message %s is not scheduled any more: it has entered the log, or was taken back.")
        messages.warning(request, text % object_id)
        return HttpResponseRedirect(self.url("changelist"))

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Show a message (GET), and change it (POST)."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        if request.method == "POST":
            require(request, "change_scheduledmessage")
        request.current_app = self.admin_site.name
        key = unquote(object_id)
        message = with_texts(self.log, int(key)) if NUMBER.fullmatch(key) else None
        if message is None:
            return self.gone(request, key)
        form = ScheduledForm(message, request.POST if request.method == "POST" else None)
        if request.method == "POST" and form.is_valid():
            try:
                edit(self.log, message.pk, **form.changes)
            except SqlqueueError as error:
                form.add_error(None, str(error))
            else:
                labels = ", ".join(str(form.fields[name].label) for name in form.changed_data)
                text = _("Changed: %s.") % labels if labels else _("Accepted as it is.")
                log_done(request, [message], CHANGE, text)
                messages.success(request, text)
                return HttpResponseRedirect(request.path)
        return self._form_page(request, message, form)

    def _form_page(self, request: HttpRequest, message: Any, form: ScheduledForm) -> HttpResponse:
        editable = may(request, "change_scheduledmessage")
        if not editable:
            for field in form.fields.values():
                field.disabled = True
        hidden = message.payload_text is None
        body = bodies(self.log, self.model, [message.pk]).get(message.pk) if hidden else None
        context = {
            "row": message,
            "form": form,
            "editable": editable,
            "body": body,
            "too_long": hidden and body is None,
            "most": MOST_EDITED,
            "operations": self.offered(request, message),
        }
        return show(self, request, "scheduled", _("Scheduled message %d") % message.pk, context)
