"""What may be done with scheduled messages: run them now, take them back, correct one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, ClassVar

from django import forms
from django.contrib.admin.models import DELETION
from django.utils.timezone import is_aware, localtime
from django.utils.translation import gettext_lazy as _

from sqlqueue.admin.cells import editable
from sqlqueue.admin.operation import Done, Operation, Text
from sqlqueue.admin.times import StoredMomentField
from sqlqueue.core.keys import GROUP_LENGTH, ID_LENGTH, KEY_LENGTH, TOPIC_LENGTH
from sqlqueue.operations.edit_scheduled import edit, run_now, withdraw
from sqlqueue.operations.reschedule import Changed


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

    def __init__(self, label: Any, length: int | None = None, **options: Any) -> None:
        super().__init__(label=label, max_length=length, strip=False, **{"required": False, **options})

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
    topic = ExactText(_("Topic"), TOPIC_LENGTH, required=True)
    key = ExactText(_("Key"), KEY_LENGTH)
    id = ExactText(_("Id"), ID_LENGTH, help_text=_("Empty: a fresh one."))
    priority = forms.IntegerField(label=_("Priority"), help_text=_("Lower goes first."), min_value=0, max_value=99)
    group = ExactText(_("For this group alone"), GROUP_LENGTH, help_text=_("Empty: for every group."))
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
            "topic": row.topic,
            "key": row.partition_key,
            "id": row.message_id or "",
            "priority": row.priority,
            "group": row.target_group,
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
