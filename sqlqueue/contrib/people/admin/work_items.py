"""Work items: the list, the page of one, the page of a person's own work, and what other pages say of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.text import Truncator
from django.utils.translation import gettext_lazy as _

from sqlqueue.admin import messages, overview
from sqlqueue.admin.cells import harmless, indented, tag
from sqlqueue.admin.operation import OperatedAdmin
from sqlqueue.admin.pages import NUMBER, ReadOnlyAdmin, page_url, show, user_name
from sqlqueue.contrib.people.admin.operations import OPERATIONS
from sqlqueue.contrib.people.admin.permissions import SEEN_BY, closed_topics, may_on, sees_items, team_topics
from sqlqueue.contrib.people.models import REVIEW, MyWork, WorkItem
from sqlqueue.contrib.people.survey import (
    HEAVY,
    LATE,
    LATER,
    MOST_LISTED,
    OVERDUE_ITEMS,
    OWN,
    TEAM,
    UNASSIGNED,
    own_work,
)
from sqlqueue.database.log import Log
from sqlqueue.models import Message

APP = "sqlqueue_people"
MOST_ITEMS = 100  # on the page of a message: a group makes another one only after a rewind
MOST_OF_A_PAYLOAD = 20_000  # characters of what is shown
MOST_EVENTS = 200
MOST_OF_A_REASON = 120
HEADINGS = {
    LATE: _("Overdue"),
    OWN: _("My items"),
    LATER: _("Put off for later"),
    TEAM: _("With my teams"),
    UNASSIGNED: _("Unassigned"),
}


class SeenByPeople(ReadOnlyAdmin):
    """A page for all who may see items."""

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Tell whether the user may see items at all, or this one."""
        return sees_items(request.user) if obj is None else may_on(request.user, obj.topic, *SEEN_BY)

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Tell whether the user finds the list in the index."""
        return sees_items(request.user)


@admin.register(WorkItem)
class WorkItemAdmin(SeenByPeople, OperatedAdmin):
    """The list of the items that the user may see, newest first."""

    change_list_template = "admin/sqlqueue_people/work_items.html"
    list_display = ("id", "topic", "why", "key_and_id", "status", "assignee", "due_at", "handed_over_at")
    list_filter = ("state",)
    operations = OPERATIONS
    page_template = "work_item"

    def get_queryset(self, request: HttpRequest) -> QuerySet[WorkItem]:
        """Return the items of the topics that the user may see, without what is large."""
        return super().get_queryset(request).defer(*HEAVY).exclude(topic__in=closed_topics(request.user))

    @admin.display(description=_("reason"))
    def why(self, item: WorkItem) -> str:
        """Show the beginning of the reason."""
        return Truncator(harmless(item.reason or "")).chars(MOST_OF_A_REASON) or "–"

    @admin.display(description=_("state"))
    def status(self, item: WorkItem) -> str:
        """Show the state."""
        return tag(item.get_state_display()) if item.state == REVIEW else str(item.get_state_display())

    def row(self, request: HttpRequest, object_id: str) -> Any:
        """Return an item with all but its bytes; None if there is none. Raises PermissionDenied if the user may not see
        it."""
        key = unquote(object_id)
        rows = WorkItem.objects.using(self.log.alias).defer("body")
        item = rows.filter(pk=int(key)).first() if NUMBER.fullmatch(key) else None
        if item is not None and not self.has_view_permission(request, item):
            raise PermissionDenied
        return item

    def page(self, request: HttpRequest, row: Any) -> tuple[object, Mapping[str, Any]]:
        """Return the title, and the item with its audit trail."""
        events = list(row.events.using(self.log.alias).order_by("-pk")[: MOST_EVENTS + 1])
        message = Message.objects.using(self.log.alias).filter(pk=row.message_offset)
        return _("Work item %d") % row.pk, {
            "item": row,
            "payload": _text(row.payload),
            "filled_in": None if row.form is None else _text(row.form),
            "result": None if row.result is None else _text(row.result),
            "events": [
                (event, None if event.result is None else _text(event.result)) for event in events[:MOST_EVENTS]
            ],
            "more_events": len(events) > MOST_EVENTS,
            "message_url": page_url(request, "message", "change", row.message_offset) if message.exists() else "",
            "mine": _url_of_mine(request),
        }


@admin.register(MyWork)
class MyWorkAdmin(SeenByPeople):
    """A page instead of a list."""

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show what the user has to do: what is due, the user's own, what is put off, the teams', the unassigned."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        user = request.user
        found = own_work(self.log, user_name(request), team_topics(user), closed_topics(user))
        context = {"sections": [(HEADINGS[one.name], one) for one in found], "most": MOST_LISTED}
        return show(self, request, "my_work", _("My work"), context, APP)


def _text(value: Any) -> str:
    """Return JSON to be read; it says so if it is cut."""
    return indented(value, MOST_OF_A_PAYLOAD, str(_("… and more")))


def _url_of_mine(request: HttpRequest) -> str:
    return reverse(f"admin:{APP}_mywork_changelist", current_app=getattr(request, "current_app", "admin"))


def section_of_message(log: Log, request: HttpRequest, offsets: Collection[int]) -> str:
    """Return the section of a message's page: the items that groups have made of it, or of its dead letter, as far as
    the user may see them, the newest MOST_ITEMS."""
    if not sees_items(request.user):
        return ""
    items = WorkItem.objects.using(log.alias).filter(message_offset__in=sorted(offsets))
    seen = items.exclude(topic__in=closed_topics(request.user)).order_by("-message_offset", "-pk")
    found = list(seen.only("topic", "consumer_group", "state", "assignee", "handed_over_at")[: MOST_ITEMS + 1])
    context = {"items": found[:MOST_ITEMS], "more": len(found) > MOST_ITEMS}
    return render_to_string(f"admin/{APP}/message_section.html", context, request)


def link_to_mine(request: HttpRequest) -> overview.Link:
    """Return the link of the finding, without a URL for users who see no work items."""
    return str(_("My work")), _url_of_mine(request) if sees_items(request.user) else ""


messages.SECTIONS.append(section_of_message)
overview.LINKS[OVERDUE_ITEMS.name] = link_to_mine
