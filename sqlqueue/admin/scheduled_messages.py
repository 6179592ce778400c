"""Scheduled messages: those that wait for their time and those that the log has refused, the page of one, and what may
be done with them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.models import DELETION
from django.contrib.admin.utils import unquote
from django.db.models import Case, Q, QuerySet, TextField, When
from django.db.models.functions import Cast, Coalesce, Length
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html
from django.utils.text import Truncator
from django.utils.timezone import is_aware, localtime
from django.utils.translation import gettext_lazy as _

from sqlqueue.admin.cells import StoredMomentField, code, editable, harmless, show_previews, tag
from sqlqueue.admin.lists import KeysetChangeList
from sqlqueue.admin.operation import Done, OperatedAdmin, Operation, Text
from sqlqueue.admin.pages import NUMBER
from sqlqueue.models import ScheduledMessage
from sqlqueue.operations.edit_scheduled import edit, run_now, withdraw
from sqlqueue.operations.reschedule import Changed
from sqlqueue.stats.search import bodies

MOST_EDITED = 100_000  # characters of payload and headers together; longer ones are not shown, and stay as they are


class ScheduledOperation(Operation):
    """An operation on scheduled messages."""

    change: ClassVar[Callable[..., Changed]]
    text: ClassVar[Text]  # what was done, with placeholders for the rows `done` and `left`

    def run(self) -> Done:
        """Call the function with the log and the rows' numbers."""
        done = type(self).change(self.log, [row.pk for row in self.rows])
        text = str(self.text) % {"done": done.changed, "left": done.left}
        return Done(text, self.rows, self.model_admin.url("changelist"))


class RunNow(ScheduledOperation):
    """Make scheduled messages due."""

    name, label = "run-now", _("Run now")
    explanation = _(
        "The messages become due now, and a consumer process moves them into the log. Messages that the log has "
        "refused are tried again."
    )
    permissions = ("change_scheduledmessage",)
    change = staticmethod(run_now)
    text = _("Due now: %(done)d. Left alone, because they are entering the log: %(left)d.")


class TakeBack(ScheduledOperation):
    """Delete messages from the schedule."""

    name, label = "take-back", _("Take back")
    explanation = _(
        "The messages are deleted from the schedule for good, and never enter the log. A message that enters the log "
        "meanwhile stays there."
    )
    permissions = ("delete_scheduledmessage",)
    dangerous = True
    change = staticmethod(withdraw)
    text = _("Taken back: %(done)d. Left alone, because they are entering the log: %(left)d.")
    flag = DELETION


def readable(text: str | None) -> str:
    """Return stored JSON indented, or as it is if that would be very long or write a number differently; ""
    for None."""
    if text is None:
        return ""
    try:
        pretty = editable(json.loads(text))
        same = json.loads(pretty, parse_float=str) == json.loads(text, parse_float=str)
    except (ValueError, RecursionError):
        return text
    return pretty if same else text


class ExactText(forms.CharField):
    """A text field that strips nothing. Browsers rewrite line ends, so a difference in these alone is no change."""

    def __init__(self, label: Any, **options: Any) -> None:
        super().__init__(label=label, strip=False, **{"required": False, **options})

    def has_changed(self, initial: Any, data: Any) -> bool:
        """Tell whether more than line ends differs."""
        return _flat(initial or "") != _flat(data or "")


def _flat(text: str) -> str:
    return text.replace("\r", "").replace("\n", "")


class Correct(Operation):
    """Change the values of a scheduled message, on its page. Those that are not changed stay as they are stored."""

    name, label, inline = "correct", _("Save"), _("Values")
    permissions = ("change_scheduledmessage",)
    asks = several = False

    at = StoredMomentField(label=_("Due"), help_text=_("In this site's time zone; a time that is past: at once."))
    priority = forms.IntegerField(label=_("Priority"), help_text=_("Lower goes first."), min_value=0, max_value=99)
    payload_json = ExactText(_("Payload"), required=True, widget=forms.Textarea({"rows": 12}))
    headers = ExactText(_("Headers"), help_text=_("A JSON object, or empty."), widget=forms.Textarea({"rows": 3}))

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        [row] = self.rows
        due = row.due_at.replace(microsecond=0)
        due_at: Any = self.fields["at"]
        due_at.stored = localtime(due) if is_aware(due) else due
        self.initial = {
            "at": due_at.stored,
            "priority": row.priority,
            "payload_json": readable(row.payload_text),
            "headers": readable(row.headers_text),
        }
        if row.payload_text is None:
            del self.fields["payload_json"], self.fields["headers"]

    def clean_headers(self) -> dict[str, Any]:
        """Return the headers as a dictionary. Raises ValidationError if they are not JSON."""
        text = self.cleaned_data["headers"].strip()
        try:
            return json.loads(text) if text else {}
        except (ValueError, RecursionError) as error:
            raise forms.ValidationError(str(error)) from None

    def run(self) -> Done:
        """Store the changed values, and let the log try the message again."""
        edit(self.log, self.rows[0].pk, **{name: self.cleaned_data[name] for name in self.changed_data})
        labels = ", ".join(str(self.fields[name].label) for name in self.changed_data)
        return Done(_("Changed: %s.") % labels if labels else _("Accepted as it is."), self.rows)


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
        return super().get_queryset(request).defer("payload", "headers")

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
