"""The form that corrects a scheduled message: its values as they are stored, and which of them were changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django import forms
from django.db.models import Case, TextField, When
from django.db.models.functions import Cast, Coalesce, Length
from django.utils.timezone import is_aware, localtime
from django.utils.translation import gettext_lazy

from sqlqueue.admin.cells import editable
from sqlqueue.admin.times import StoredMomentField
from sqlqueue.core.keys import GROUP_LENGTH, ID_LENGTH, KEY_LENGTH, TOPIC_LENGTH
from sqlqueue.database.log import Log
from sqlqueue.models import ScheduledMessage

MOST_EDITED = 100_000  # characters of payload and headers together; longer ones are not shown, and stay as they are


def with_texts(log: Log, number: int) -> Any:
    """Return a scheduled message with payload_text and headers_text: the JSON as the database has it, None
    if it is too long to be edited, or the payload is bytes. Returns None if the message does not wait any more."""
    texts = {name: Cast(name, TextField()) for name in ("payload", "headers")}
    length = Length(texts["payload"]) + Coalesce(Length(texts["headers"]), 0)
    light = {f"{name}_text": Case(When(length__lte=MOST_EDITED, body=None, then=text)) for name, text in texts.items()}
    rows = (
        ScheduledMessage._default_manager.using(log.alias).defer("payload", "headers", "body").annotate(length=length)
    )
    return rows.annotate(**light).filter(pk=number).first()


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


class ScheduledForm(forms.Form):
    """All values of a scheduled message."""

    at = StoredMomentField(
        label=gettext_lazy("Due"),
        help_text=gettext_lazy("In this site's time zone; a time that is past: at once."),
    )
    topic = ExactText(gettext_lazy("Topic"), TOPIC_LENGTH, required=True)
    key = ExactText(gettext_lazy("Key"), KEY_LENGTH)
    id = ExactText(gettext_lazy("Id"), ID_LENGTH, help_text=gettext_lazy("Empty: a fresh one."))
    priority = forms.IntegerField(
        label=gettext_lazy("Priority"), help_text=gettext_lazy("Lower goes first."), min_value=0, max_value=99
    )
    group = ExactText(
        gettext_lazy("For this group alone"), GROUP_LENGTH, help_text=gettext_lazy("Empty: for every group.")
    )
    payload_json = ExactText(gettext_lazy("Payload"), required=True, widget=forms.Textarea({"rows": 12}))
    headers = ExactText(
        gettext_lazy("Headers"),
        help_text=gettext_lazy("A JSON object, or empty."),
        widget=forms.Textarea({"rows": 3}),
    )

    def __init__(self, message: ScheduledMessage, data: Mapping[str, Any] | None = None) -> None:
        due = message.due_at.replace(microsecond=0)
        at = localtime(due) if is_aware(due) else due
        texts: Any = message  # with_texts() has added them
        initial = {
            "at": at,
            "topic": message.topic,
            "key": message.partition_key,
            "id": message.message_id or "",
            "priority": message.priority,
            "group": message.target_group,
            "payload_json": readable(texts.payload_text),
            "headers": readable(texts.headers_text),
        }
        super().__init__(data, initial=initial)
        due_at = self.fields["at"]
        assert isinstance(due_at, StoredMomentField)
        due_at.stored = at
        if texts.payload_text is None:
            del self.fields["payload_json"], self.fields["headers"]

    def clean_headers(self) -> dict[str, Any]:
        """Return the headers as a dictionary. Raises ValidationError if they are not JSON."""
        text = self.cleaned_data["headers"].strip()
        try:
            return json.loads(text) if text else {}
        except (ValueError, RecursionError) as error:
            raise forms.ValidationError(str(error)) from None

    @property
    def changes(self) -> dict[str, Any]:
        """The changed values, by the names of the parameters of `operations.edit_scheduled.edit`."""
        return {name: self.cleaned_data[name] for name in self.changed_data}
