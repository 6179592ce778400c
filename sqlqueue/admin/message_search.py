"""The search of the log: its form, and the page of messages that it finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from django import forms
from django.utils.translation import gettext_lazy as _

from sqlqueue.admin.cells import MomentField
from sqlqueue.core.keys import ID_LENGTH, KEY_LENGTH
from sqlqueue.database.log import Log
from sqlqueue.log.seek import MARGIN, offset_before, within_calendar
from sqlqueue.log.topics import stored
from sqlqueue.models import Message, Topic
from sqlqueue.stats.search import HIGHEST, by_id, by_key, messages_at, newest

SHOWN = (
    "offset",
    "topic",
    "partition",
    "priority",
    "partition_key",
    "message_id",
    "created_at",
    "target_group",
    "failed_group",
    "fingerprint",
)


class SearchForm(forms.Form):
    """What to search for. Every field has an index except the key, for which partitions are read backwards in steps."""

    topic = forms.ChoiceField(label=_("Topic"), required=False)
    key = forms.CharField(label=_("Key"), required=False, max_length=KEY_LENGTH, strip=False)
    message_id = forms.CharField(label=_("Id"), required=False, max_length=ID_LENGTH, strip=False)
    offset = forms.IntegerField(label=_("Offset"), required=False, min_value=0, max_value=HIGHEST)
    since = MomentField(
        label=_("Since"),
        required=False,
        help_text=_("to within some seconds"),
    )
    until = MomentField(
        label=_("Until"),
        required=False,
        help_text=_("to within some seconds"),
    )

    def __init__(self, log: Log, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.log = log
        names = Topic.objects.using(log.alias).order_by("name").values_list("name", flat=True)
        topic = self.fields["topic"]
        assert isinstance(topic, forms.ChoiceField)
        topic.choices = [("", _("all")), *((name, name) for name in names)]

    def clean(self) -> dict[str, Any]:
        """Refuse a key or an id without a topic."""
        wanted: dict[str, Any] = super().clean() or self.cleaned_data
        if (wanted.get("key") or wanted.get("message_id")) and not wanted.get("topic") and "topic" not in self.errors:
            self.add_error("topic", _("Choose a topic: keys and ids are searched in one topic."))
        return wanted


class Found(NamedTuple):
    """The messages of a page. start: the offset below which the next page begins, None for none; scanned_to: the offset
    down to which a key was searched, None: to the end."""

    rows: Sequence[Message]
    start: int | None = None
    scanned_to: int | None = None


def found(form: SearchForm, most: int, start: int | None) -> Found:
    """Return the page of at most `most` messages that a valid form asks for, below an offset."""
    log, wanted = form.log, form.cleaned_data
    name = wanted["topic"]
    if wanted["offset"] is not None:
        rows = messages_at(log, [wanted["offset"]], *SHOWN)
        return Found([row for row in rows if name in ("", row.topic)])
    low = offset_before(log, wanted["since"]) if wanted["since"] else 0
    high = offset_before(log, within_calendar(wanted["until"]) + 2 * MARGIN) if wanted["until"] else HIGHEST
    if start is not None:
        high = min(high, start - 1)
    topic = stored(log, name) if name else None
    if name and topic is None:
        return Found([])
    if topic is None:
        between = Message.objects.using(log.alias).filter(offset__gt=low, offset__lte=high).only(*SHOWN)
        return _page(list(between.order_by("-offset")[: most + 1]), most)
    if wanted["message_id"]:
        offsets = by_id(log, topic, wanted["message_id"], most + 1, wanted["key"] or None)
        if len(offsets) > most:
            text = _("More than %d messages have this id, with different keys. Enter the key, too, to see the others.")
            form.add_error("key", text % most)
        return Found(messages_at(log, offsets[:most], *SHOWN))
    if wanted["key"]:
        scan = by_key(log, topic, wanted["key"], most, low, high)
        return Found(messages_at(log, scan.offsets, *SHOWN), scan.reached, scan.reached)
    return _page(messages_at(log, newest(log, topic, most + 1, low, high), *SHOWN), most)


def _page(rows: Sequence[Message], most: int) -> Found:
    return Found(rows[:most], rows[most - 1].offset if len(rows) > most else None)
