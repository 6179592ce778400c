"""Messages: the list with its search, the page of a message with its status in every group, and the actions on both."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sqlqueue.admin import dead_letters
from sqlqueue.admin.actions.base import OffersActions, chosen_offsets, run_action
from sqlqueue.admin.actions.deletion import Delete
from sqlqueue.admin.actions.message_actions import MESSAGE_ACTIONS, MessageAction
from sqlqueue.admin.cells import code, download, harmless, indented, key_id, show_outcomes, show_previews, tag
from sqlqueue.admin.lists import KeysetAdmin, KeysetChangeList
from sqlqueue.admin.message_search import HEADER_FIELD, SearchForm, found
from sqlqueue.admin.pages import require, show
from sqlqueue.core.outcomes import ACKED, DEAD, REPLAYED
from sqlqueue.database.log import Log, current_log
from sqlqueue.models import Message, Receipt
from sqlqueue.operations.replay import copy_id
from sqlqueue.stats.bodies import bodies
from sqlqueue.stats.group_status import EXPIRED, IN_FLIGHT, LIMITED, RELAYED, RETRYING, SCHEDULED, WAITING, GroupStatus
from sqlqueue.stats.message_status import status_of
from sqlqueue.stats.replayed import copy_of, original_of

MOST_SHOWN = 100_000  # characters of a payload
ALL_ACTIONS: dict[str, type[MessageAction]] = {**MESSAGE_ACTIONS, Delete.name: Delete}
MOST_RECEIPTS = 100  # on the page of a message
# Sections that the admin of other apps adds to it: each returns markup for a message of these offsets (its own, and
# that of the message of which it is a dead letter), "" for none.
SECTIONS: list[Callable[[HttpRequest, Collection[int]], str]] = []
STATES = {
    RELAYED: gettext_lazy("on its way from another database"),
    SCHEDULED: gettext_lazy("scheduled"),
    WAITING: gettext_lazy("waiting"),
    LIMITED: gettext_lazy("limited"),
    IN_FLIGHT: gettext_lazy("in flight"),
    RETRYING: gettext_lazy("failing, waits for its next attempt"),
    ACKED: gettext_lazy("acknowledged"),
    DEAD: gettext_lazy("dead letter"),
    EXPIRED: gettext_lazy("expired"),
    REPLAYED: gettext_lazy("replayed"),
}
UNUSUAL = (RETRYING, DEAD, EXPIRED)


def _original(log: Log, dead_letter: Message) -> Message | None:
    """Return the message that a dead letter is a copy of; None if it has been collected."""
    messages = Message.objects.using(log.alias).without_content()
    return messages.filter(topic=dead_letter.original_topic, offset=dead_letter.original_offset).first()


class ShownStatus(NamedTuple):
    """The status of a message in a group, with its label and the result as text; of a replayed one the copy's label,
    and its offset where it is in this log."""

    status: GroupStatus
    state: Any
    result: str
    copy_state: Any
    copy_offset: int | None


def _statuses(log: Log, message: Message) -> Iterator[ShownStatus]:
    """Yield the status of a message in each group."""
    for one in status_of(log, message).groups.values():
        result = "" if one.result is None else indented(one.result, MOST_SHOWN)
        copy = copy_of(log, message.topic, *one.replayed_as) if one.replayed_as else None
        yield ShownStatus(one, STATES[one.state], result, STATES.get(one.copy_state, ""), copy)


def last_line(error: str) -> str:
    """Return the last line of a traceback: the exception."""
    return error.strip().rpartition("\n")[2]


def label(state: str) -> str:
    """Return a state as a list shows it: an unusual one in a frame."""
    return tag(STATES[state]) if state in UNUSUAL else str(STATES[state])


@admin.register(Message)
class MessageAdmin(OffersActions, KeysetAdmin):
    """The list and the pages of messages."""

    change_list_template = "admin/sqlqueue/messages.html"
    action_classes = ALL_ACTIONS
    list_display = ("offset", "topic", "key_and_id", "preview", "outcomes", "created_at")
    list_display_links = ("offset",)
    own_parameters = tuple(SearchForm.base_fields)
    own_prefixes = (HEADER_FIELD,)

    @admin.display(description=gettext_lazy("key and id"))
    def key_and_id(self, message: Message) -> str:
        """Show key and id, cut where they are long."""
        return key_id(message.partition_key, message.message_id)

    @admin.display(description=gettext_lazy("payload"))
    def preview(self, message: Message) -> str:
        """Show the beginning of the payload."""
        return code(message.preview)  # type: ignore[attr-defined]

    @admin.display(description=gettext_lazy("status"))
    def outcomes(self, message: Message) -> str:
        """Show the status in each group; of a dead letter, the group in which it failed and the fingerprint."""
        if message.failed_group:
            text = _("dead letter of %(group)s: %(fingerprint)s") % {
                "group": message.failed_group,
                "fingerprint": message.fingerprint,
            }
            return format_html("{}", harmless(text))
        lines = ((one.group, label(one.state), seconds) for one, seconds in message.outcomes)  # type: ignore[attr-defined]
        return format_html_join("", '<div class="sqlqueue-outcome">{}: {} {}</div>', lines) or "–"

    def get_urls(self) -> list[URLPattern]:
        """Add the pages of actions, of bytes, and of dead letters."""
        action = self.admin_site.admin_view(self.action_view)
        return [
            path("action/<slug:name>/", action, name="sqlqueue_message_action"),
            path("<int:offset>/body/", self.admin_site.admin_view(self.body_view), name="sqlqueue_message_body"),
            *dead_letters.urls(self),
            *super().get_urls(),
        ]

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
        show_outcomes(page.rows)
        return list(page.rows)

    def action_view(self, request: HttpRequest, name: str) -> HttpResponse:
        """Ask for confirmation of an action on the ticked messages, or carry it out."""
        if name not in ALL_ACTIONS:
            raise Http404
        action_class = ALL_ACTIONS[name]
        require(request, "view_message", *action_class.permissions)
        site = self.admin_site.name
        action = action_class(chosen_offsets(request), reverse(f"{site}:sqlqueue_message_changelist"))
        return run_action(self, request, action, reverse(f"{site}:sqlqueue_message_action", args=[name]))

    def get_queryset(self, request: HttpRequest) -> QuerySet[Message]:
        """Return the rows without bytes, which no page shows."""
        return super().get_queryset(request).defer("body")

    def body_view(self, request: HttpRequest, offset: int) -> HttpResponse:
        """Return the bytes of a message as a file to save."""
        require(request, "view_message")
        return download(Message, offset)

    def _gone(self, request: HttpRequest, number: str) -> HttpResponse:
        """Lead from a dead letter that was replayed to its original; say of anything else that it does not exist."""
        log = current_log()
        original = original_of(log, copy_id(log, int(number))) if number.isdecimal() and len(number) < 20 else None
        if original:
            return HttpResponseRedirect(reverse(f"{self.admin_site.name}:sqlqueue_message_change", args=[original]))
        return self._get_obj_does_not_exist_redirect(request, self.opts, number)  # type: ignore[attr-defined]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Show a message and its status in every group."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        message = self.get_object(request, unquote(object_id))
        if message is None:
            return self._gone(request, unquote(object_id))
        log = current_log()
        original = _original(log, message) if message.failed_group else message
        offset = message.original_offset if message.failed_group else message.offset
        receipts = Receipt.objects.using(log.alias).filter(message_offset=offset).order_by("consumer_group", "id")
        shown = list(receipts[:MOST_RECEIPTS])
        request.current_app = self.admin_site.name
        context = {
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
            "sections": [section(request, {message.offset, offset or message.offset}) for section in SECTIONS],
            "unlisted": receipts.count() - len(shown) if len(shown) == MOST_RECEIPTS else 0,
            "actions": [] if message.failed_group else self.permitted_actions(request),
            "dead_letter_actions": dead_letters.permitted_actions(request) if message.failed_group else [],
        }
        return show(self, request, "message", _("Message %d") % message.offset, context)
