"""The search of the log: its form, and the page of messages that it finds."""

from __future__ import annotations

from typing import Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sqlqueue.admin.keyset import Page, cut, page_of
from sqlqueue.admin.times import MomentField
from sqlqueue.core.keys import ID_LENGTH, KEY_LENGTH
from sqlqueue.database import header_index
from sqlqueue.database.log import Log
from sqlqueue.database.validation import TopicInfo
from sqlqueue.log.seek import MARGIN, offset_before, within_calendar
from sqlqueue.models import Message, Topic
from sqlqueue.stats.search import HIGHEST, by_id, by_key, messages_at, newest, oldest, topic_of

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
HEADER_FIELD = "header-"  # and the name of an indexed header


class SearchForm(forms.Form):
    """What to search for, headers that have an index included (see IndexHeader). Every field has an index except the
    key, for which partitions are read backwards in steps."""

    topic = forms.ChoiceField(label=gettext_lazy("Topic"), required=False)
    key = forms.CharField(label=gettext_lazy("Key"), required=False, max_length=KEY_LENGTH, strip=False)
    message_id = forms.CharField(label=gettext_lazy("Id"), required=False, max_length=ID_LENGTH, strip=False)
    offset = forms.IntegerField(label=gettext_lazy("Offset"), required=False, min_value=0, max_value=HIGHEST)
    since = MomentField(
        label=gettext_lazy("Since"),
        required=False,
        help_text=gettext_lazy("to within some seconds"),
    )
    until = MomentField(
        label=gettext_lazy("Until"),
        required=False,
        help_text=gettext_lazy("to within some seconds"),
    )

    def __init__(self, log: Log, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.log = log
        names = Topic.objects.using(log.alias).order_by("name").values_list("name", flat=True)
        topic = self.fields["topic"]
        assert isinstance(topic, forms.ChoiceField)
        topic.choices = [("", _("all")), *((name, name) for name in names)]
        self.indexed = header_index.indexed_headers(log)
        for header in self.indexed:
            self.fields[HEADER_FIELD + header] = forms.CharField(
                label=_("Header %s") % header,
                required=False,
                max_length=header_index.SEARCHED_LENGTH,
                strip=False,
            )

    def clean(self) -> dict[str, Any]:
        """Refuse a key, an id or a header without a topic, and more than one of them."""
        wanted: dict[str, Any] = super().clean() or self.cleaned_data
        exact = [name for name in ("key", "message_id", *map(HEADER_FIELD.__add__, self.indexed)) if wanted.get(name)]
        if exact and not wanted.get("topic") and "topic" not in self.errors:
            self.add_error("topic", _("Choose a topic: keys, ids and headers are searched in one topic."))
        for name in self.data:
            if name.startswith(HEADER_FIELD) and name not in self.fields:
                self.add_error("topic", _("The header %s has no index.") % name.removeprefix(HEADER_FIELD))
        headers = [name for name in exact if name.startswith(HEADER_FIELD)]
        if headers and len(exact) > 1:
            self.add_error(headers[-1], _("Search by one header alone, without key and id."))
        return wanted

    @property
    def header(self) -> tuple[str, str] | None:
        """The indexed header that is searched, and its value."""
        for name in self.indexed:
            if value := self.cleaned_data[HEADER_FIELD + name]:
                return name, value
        return None


def found(form: SearchForm, most: int, before: int | None, after: int | None) -> tuple[Page, int | None]:
    """Return the page that a valid form asks for, and down to which offset a key was searched (None: to the end)."""
    log, wanted = form.log, form.cleaned_data
    name = wanted["topic"]
    if wanted["offset"] is not None:
        rows = messages_at(log, [wanted["offset"]], *SHOWN)
        return Page([row for row in rows if name in ("", row.topic)]), None
    low = offset_before(log, wanted["since"]) if wanted["since"] else 0
    high = offset_before(log, within_calendar(wanted["until"]) + 2 * MARGIN) if wanted["until"] else HIGHEST
    topic = topic_of(log, name) if name else None
    if name and topic is None:
        return Page([]), None
    if topic is None:
        rows_between = Message.objects.using(log.alias).filter(offset__gt=low, offset__lte=high).only(*SHOWN)
        return page_of(rows_between, most, before, after), None
    if wanted["message_id"]:
        offsets = by_id(log, topic, wanted["message_id"], most + 1, wanted["key"] or None)
        if len(offsets) > most:
            text = _("More than %d messages have this id, with different keys. Enter the key, too, to see the others.")
            form.add_error("key", text % most)
        return Page(messages_at(log, offsets[:most], *SHOWN)), None
    if form.header is not None:
        return _by_header(log, topic, *form.header, most, low, high, before, after), None
    if wanted["key"]:
        scan = by_key(log, topic, wanted["key"], most, low, high if before is None else min(high, before - 1))
        return Page(messages_at(log, scan.offsets, *SHOWN), scan.reached), scan.reached
    return _in_topic(log, topic, most, low, high, before, after), None


def _by_header(
    log: Log,
    topic: TopicInfo,
    name: str,
    value: str,
    most: int,
    low: int,
    high: int,
    before: int | None,
    after: int | None,
) -> Page:
    """Return a page of a topic's messages with this header, by its index."""
    if after is not None:
        above = header_index.find(log, name, value, topic.name, most + 1, max(low, after), high, newest_first=False)
        if len(above) >= most:
            return cut(messages_at(log, above, *SHOWN), most, after=after)
        before = None
    below = header_index.find(
        log, name, value, topic.name, most + 1, low, high if before is None else min(high, before - 1)
    )
    return cut(messages_at(log, below, *SHOWN), most, before=before)


def _in_topic(
    log: Log, topic: TopicInfo, most: int, low: int, high: int, before: int | None, after: int | None
) -> Page:
    """Return a page of a topic, by the index of (topic, partition, priority, offset)."""
    if after is not None:
        above = oldest(log, topic, most + 1, max(low, after), high)
        if len(above) >= most:
            return cut(messages_at(log, above, *SHOWN), most, after=after)
        before = None
    below = newest(log, topic, most + 1, low, high if before is None else min(high, before - 1))
    return cut(messages_at(log, below, *SHOWN), most, before=before)
