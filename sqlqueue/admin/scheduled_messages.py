"""Scheduled messages: those that wait for their time and those that the log has refused, and the page of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.db.models import Case, Q, QuerySet, TextField, When
from django.db.models.functions import Cast, Coalesce, Length
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html
from django.utils.text import Truncator
from django.utils.translation import gettext_lazy as _

from sqlqueue.admin.cells import code, harmless, show_previews, tag
from sqlqueue.admin.lists import KeysetChangeList
from sqlqueue.admin.operation import OperatedAdmin
from sqlqueue.admin.pages import NUMBER
from sqlqueue.admin.scheduled_operations import Correct, RunNow, TakeBack
from sqlqueue.models import ScheduledMessage
from sqlqueue.stats.bodies import bodies

MOST_EDITED = 100_000  # characters of payload and headers together; longer ones are not shown, and stay as they are


@admin.register(ScheduledMessage)
class ScheduledMessageAdmin(OperatedAdmin):
    """The list of scheduled messages: refused ones first, with the reason, and then by the time at which they are due;
    and the page of one."""

    list_display = ("id", "topic", "state", "due_at", "preview", "key_and_id")
    key = ("due_at", "id")
    list_filter = ("refused",)
    search_fields = ("=id",)
    operations = (RunNow, TakeBack, Correct)
    page_template = "scheduled"

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

    @admin.display(description=_("payload"))
    def preview(self, message: Any) -> str:
        """Show the beginning of the payload."""
        return code(message.preview)

    @admin.display(description=_("key and id"))
    def key_and_id(self, message: Any) -> str:
        """Show key and id, cut where they are long, and the target group, if there is one."""
        html = super().key_and_id(message)
        if not message.target_group:
            return html
        return format_html("{}<div>{}</div>", html, _("for %s alone") % message.target_group)

    @admin.display(description=_("state"))
    def state(self, message: Any) -> str:
        """Show why it was refused, or that it waits."""
        if message.refused:
            return format_html("{} {}", tag(_("refused")), Truncator(harmless(message.refusal or "")).chars(300))
        return str(_("waits"))

    def row(self, request: HttpRequest, object_id: str) -> Any:
        """Return a message with payload_text and headers_text: the JSON as the database has it, None if it is too long
        to be edited, or the payload is bytes. Returns None if the message does not wait any more."""
        if not NUMBER.fullmatch(unquote(object_id)):
            return None
        texts = {name: Cast(name, TextField()) for name in ("payload", "headers")}
        length = Length(texts["payload"]) + Coalesce(Length(texts["headers"]), 0)
        shown = {
            f"{name}_text": Case(When(length__lte=MOST_EDITED, body=None, then=text)) for name, text in texts.items()
        }
        rows = self.get_queryset(request).annotate(length=length).annotate(**shown)
        return rows.filter(pk=int(unquote(object_id))).first()

    def gone(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Lead to the list, and say that the message is not scheduled any more."""
        text = _("Message %s is not scheduled any more: it has entered the log, or was taken back.")
        messages.warning(request, text % unquote(object_id))
        return HttpResponseRedirect(self.url("changelist"))

    def page(self, request: HttpRequest, row: Any) -> tuple[object, Mapping[str, Any]]:
        """Return the title, and what a user sees who may not correct the message."""
        values = Correct(self, request, [row])
        for field in values.fields.values():
            field.disabled = True
        hidden = row.payload_text is None
        body = bodies(self.log, self.model, [row.pk]).get(row.pk) if hidden else None
        return _("Scheduled message %d") % row.pk, {
            "values": values,
            "body": body,
            "too_long": hidden and body is None,
            "most": MOST_EDITED,
        }
