"""Messages: the list with its search, the page of a message with its status in every group, and the actions on both."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from django import forms
from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext_lazy as _

from sqlqueue.admin.cells import MomentField, code, harmless, indented, show_previews, tag
from sqlqueue.admin.lists import KeysetChangeList
from sqlqueue.admin.message_operations import MESSAGE_OPERATIONS
from sqlqueue.admin.operation import OperatedAdmin, Operation
from sqlqueue.core.keys import ID_LENGTH, KEY_LENGTH
from sqlqueue.core.outcomes import ACKED, DEAD, REPLAYED
from sqlqueue.database import index_header
from sqlqueue.database.log import Log
from sqlqueue.log.status import MARGIN, offset_before, within_calendar
from sqlqueue.log.topics import stored
from sqlqueue.models import DeadLetter, Message, Receipt, Topic
from sqlqueue.operations.replay import copy_id
from sqlqueue.stats.group_status import (
    EXPIRED,
    IN_FLIGHT,
    LIMITED,
    RELAYED,
    RETRYING,
    SCHEDULED,
    WAITING,
    GroupStatus,
    statuses_of,
)
from sqlqueue.stats.message_status import status_of
from sqlqueue.stats.search import HIGHEST, bodies, by_id, by_key, copy_of, messages_at, newest, original_of

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

    topic = forms.ChoiceField(label=_("Topic"), required=False)
    key = forms.CharField(label=_("Key"), required=False, max_length=KEY_LENGTH, strip=False)
    message_id = forms.CharField(label=_("Id"), required=False, max_length=ID_LENGTH, strip=False)
    offset = forms.IntegerField(label=_("Offset"), required=False, min_value=0, max_value=HIGHEST)
    since = MomentField(label=_("Since"), required=False, help_text=_("to within some seconds"))
    until = MomentField(label=_("Until"), required=False, help_text=_("to within some seconds"))

    def __init__(self, log: Log, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.log = log
        names = Topic.objects.using(log.alias).order_by("name").values_list("name", flat=True)
        topic: Any = self.fields["topic"]
        topic.choices = [("", _("all")), *((name, name) for name in names)]
        self.indexed = index_header.indexed_headers(log)
        for header in self.indexed:
            label, longest = _("Header %s") % header, index_header.SEARCHED_LENGTH
            field = forms.CharField(label=label, required=False, max_length=longest, strip=False)
            self.fields[HEADER_FIELD + header] = field

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
    if form.header is not None:
        offsets = index_header.find(log, *form.header, topic.name, most + 1, low, high)
    else:
        offsets = newest(log, topic, most + 1, low, high)
    return _page(messages_at(log, offsets, *SHOWN), most)


def _page(rows: Sequence[Message], most: int) -> Found:
    return Found(rows[:most], rows[most - 1].offset if len(rows) > most else None)


MOST_SHOWN = 100_000  # characters of a payload
LISTED = (
    "offset",
    "topic",
    "partition",
    "partition_key",
    "message_id",
    "failed_group",
    "fingerprint",
)  # on an operation's page
MOST_RECEIPTS = 100  # on the page of a message
# Sections that the admin of other apps adds to it: each returns markup for a message of these offsets (its own, and
# that of the message of which it is a dead letter), "" for none.
SECTIONS: list[Callable[[Log, HttpRequest, Collection[int]], str]] = []
STATES = {
    RELAYED: _("on its way from another database"),
    SCHEDULED: _("scheduled"),
    WAITING: _("waiting"),
    LIMITED: _("limited"),
    IN_FLIGHT: _("in flight"),
    RETRYING: _("failing, waits for its next attempt"),
    ACKED: _("acknowledged"),
    DEAD: _("dead letter"),
    EXPIRED: _("expired"),
    REPLAYED: _("replayed"),
}
UNUSUAL = (RETRYING, DEAD, EXPIRED)


def _original(log: Log, dead_letter: Message) -> Message | None:
    """Return the message that a dead letter is a copy of; None if it has been collected."""
    messages = Message.objects.using(log.alias).without_content()
    return messages.filter(topic=dead_letter.original_topic, offset=dead_letter.original_offset).first()


def _statuses(log: Log, message: Message) -> Iterator[tuple[GroupStatus, Any, str, Any, int | None]]:
    """Yield the status of a message in each group, with its label and the result as text; of a replayed one the copy's
    label, and its offset where it is in this log."""
    for one in status_of(log, message).groups.values():
        result = "" if one.result is None else indented(one.result, MOST_SHOWN)
        copy = copy_of(log, message.topic, *one.replayed_as) if one.replayed_as else None
        yield one, STATES[one.state], result, STATES.get(one.copy_state, ""), copy


def label(state: str) -> str:
    """Return a state as a list shows it: an unusual one in a frame."""
    return tag(STATES[state]) if state in UNUSUAL else str(STATES[state])


@admin.register(Message)
class MessageAdmin(OperatedAdmin):
    """The list and the pages of messages."""

    change_list_template = "admin/sqlqueue/messages.html"
    operations = MESSAGE_OPERATIONS
    page_template = "message"
    list_display = ("offset", "topic", "key_and_id", "preview", "outcomes", "created_at")
    list_display_links = ("offset",)
    own_parameters = tuple(SearchForm.base_fields)
    own_prefixes = (HEADER_FIELD,)

    @admin.display(description=_("payload"))
    def preview(self, message: Message) -> str:
        """Show the beginning of the payload."""
        return code(message.preview)  # type: ignore[attr-defined]

    @admin.display(description=_("status"))
    def outcomes(self, message: Message) -> str:
        """Show the status in each group; of a dead letter, the group in which it failed and the fingerprint."""
        if message.failed_group:
            text = _("dead letter of %(group)s: %(fingerprint)s") % {
                "group": message.failed_group,
                "fingerprint": message.fingerprint,
            }
            return format_html("{}", harmless(text))
        lines = ((one.group, label(one.state)) for one in message.outcomes)  # type: ignore[attr-defined]
        return format_html_join("", '<div class="sqlqueue-outcome">{}: {}</div>', lines) or "–"

    def get_page(self, request: HttpRequest, changes: KeysetChangeList) -> list[Any]:
        """Return the page that the search form asks for; an empty one if the form is not valid."""
        form = SearchForm(changes.log, request.GET)
        changes.search = form  # type: ignore[attr-defined]
        if not form.is_valid():
            return []
        after = self.start(request)
        page = found(form, self.list_per_page, after and after[1][0])
        changes.next_start = None if page.start is None else json.dumps([0, page.start])
        changes.searched_to = page.scanned_to  # type: ignore[attr-defined]
        show_previews(Message, page.rows)
        statuses = statuses_of(changes.log, page.rows)
        for row in page.rows:
            row.outcomes = statuses[row.offset]  # type: ignore[attr-defined]
        return list(page.rows)

    def rows_of(self, request: HttpRequest, keys: Sequence[str]) -> Sequence[Message]:
        """Return the messages at these offsets, without their content."""
        return messages_at(self.log, list(map(int, keys)), *LISTED)

    def gone(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Lead from a dead letter that was replayed to its original; say of anything else that it does not exist."""
        number = unquote(object_id)
        original = None
        if number.isdecimal() and len(number) < 20:
            original = original_of(self.log, copy_id(self.log, int(number)))
        if original:
            return HttpResponseRedirect(self.url("change", original))
        return self._get_obj_does_not_exist_redirect(request, self.opts, number)  # type: ignore[attr-defined]

    def page(self, request: HttpRequest, row: Any) -> tuple[object, Mapping[str, Any]]:
        """Return the title, and the message with its status in every group."""
        message, log = row, self.log
        original = _original(log, message) if message.failed_group else message
        offset = message.original_offset if message.failed_group else message.offset
        receipts = Receipt.objects.using(log.alias).filter(message_offset=offset).order_by("consumer_group", "id")
        shown = list(receipts[:MOST_RECEIPTS])
        return _("Message %d") % message.offset, {
            "message": message,
            "payload": indented(message.payload, MOST_SHOWN),
            "body": bodies(log, Message, [message.pk]).get(message.pk) if message.payload is None else None,
            "headers": indented(message.headers, MOST_SHOWN) if message.headers else "",
            "exception": (message.last_error or "").strip().rpartition("\n")[2],
            "original": original,
            "subject_offset": offset,
            "statuses": list(_statuses(log, original)) if original else [],
            "replay_of": original_of(log, message.message_id) if message.target_group else None,
            "receipts": shown,
            "sections": [section(log, request, {message.offset, offset or message.offset}) for section in SECTIONS],
            "unlisted": receipts.count() - len(shown) if len(shown) == MOST_RECEIPTS else 0,
        }

    def offered(self, request: HttpRequest, row: Any = None) -> list[Operation]:
        """Return the operations that the user may do; with a dead letter, those on dead letters."""
        if row is not None and row.failed_group:
            of_dead_letters: Any = self.admin_site._registry[DeadLetter]
            return list(of_dead_letters.offered(request, row))
        return super().offered(request, row)
