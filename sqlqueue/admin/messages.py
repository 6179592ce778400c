"""Messages: the list with its search, the page of a message with its status in every group, and the actions on both."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext_lazy as _

from sqlqueue.admin.cells import code, harmless, indented, show_previews, tag
from sqlqueue.admin.lists import KeysetChangeList
from sqlqueue.admin.message_operations import MESSAGE_OPERATIONS
from sqlqueue.admin.message_search import SearchForm, found
from sqlqueue.admin.operation import OperatedAdmin, Operation
from sqlqueue.core.outcomes import ACKED, DEAD, REPLAYED
from sqlqueue.database.log import Log
from sqlqueue.models import DeadLetter, Message, Receipt
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
from sqlqueue.stats.search import bodies, copy_of, messages_at, original_of

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


def last_line(error: str) -> str:
    """Return the last line of a traceback: the exception."""
    return error.strip().rpartition("\n")[2]


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

    def get_queryset(self, request: HttpRequest) -> QuerySet[Message]:
        """Return the rows without bytes, which no page shows."""
        return super().get_queryset(request).defer("body")

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
            "exception": last_line(message.last_error or ""),
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
