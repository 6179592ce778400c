"""Work items: the list, the page of one with what may be done, and the page of a person's own work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import BadRequest, PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sqlqueue.admin.cells import download, harmless, indented, key_id, tag
from sqlqueue.admin.lists import KeysetAdmin
from sqlqueue.admin.pages import ReadOnlyAdmin, page_url, remember_change, show, user_name
from sqlqueue.contrib.people import work
from sqlqueue.contrib.people.admin.forms import AssignForm, CommentForm, DecisionForm, LaterForm, NeededCommentForm
from sqlqueue.contrib.people.admin.other_pages import APP, MINE
from sqlqueue.contrib.people.admin.permissions import (
    ASSIGN,
    REVIEW,
    SEEN_BY,
    WORK,
    closed_topics,
    may_on,
    require_on,
    team_topics,
)
from sqlqueue.contrib.people.exceptions import WorkItemChanged
from sqlqueue.contrib.people.models import DONE, OPEN, MyWork, WorkItem
from sqlqueue.contrib.people.models import REVIEW as IN_REVIEW
from sqlqueue.contrib.people.own_work import HEAVY, LATER, MOST_LISTED, OVERDUE, OWN, TEAM, UNASSIGNED, own_work
from sqlqueue.database.log import current_log
from sqlqueue.exceptions import SqlqueueError
from sqlqueue.models import Message

MOST_OF_A_PAYLOAD = 20_000  # characters of what is shown
MOST_EVENTS = 200
MOST_OF_A_REASON = 120
HEADINGS = {
    OVERDUE: gettext_lazy("Overdue"),
    OWN: gettext_lazy("My items"),
    LATER: gettext_lazy("Put off for later"),
    TEAM: gettext_lazy("With my teams"),
    UNASSIGNED: gettext_lazy("Unassigned"),
}


class Deed(NamedTuple):
    """Something that a person may do with an item. run: takes the item's number, its version, the user, the values of
    the form that are named, and the comment; done: the sentence that says so."""

    form: type[CommentForm]
    codenames: tuple[str, ...]
    run: Callable[..., None]
    done: Any
    values: tuple[str, ...] = ()


def _take(number: int, version: int, by: str, comment: str) -> None:
    work.assign(number, version, by, by, comment=comment)


def _add_comment(number: int, version: int, by: str, comment: str) -> None:
    work.add_comment(number, by, comment)


DEEDS = {
    "take": Deed(CommentForm, (WORK, REVIEW), _take, gettext_lazy("It is yours now.")),
    "release": Deed(CommentForm, (WORK, REVIEW), work.release, gettext_lazy("It is unassigned now.")),
    "assign": Deed(AssignForm, (ASSIGN,), work.assign, gettext_lazy("It is assigned."), ("user",)),
    "later": Deed(LaterForm, (WORK,), work.defer, gettext_lazy("It is put off."), ("until",)),
    "finish": Deed(DecisionForm, (WORK,), work.finish, gettext_lazy("It is done."), ("result",)),
    "submit": Deed(DecisionForm, (WORK,), work.submit, gettext_lazy("A review is asked for."), ("result", "reviewer")),
    "approve": Deed(CommentForm, (REVIEW,), work.approve, gettext_lazy("It is approved, and done.")),
    "send-back": Deed(CommentForm, (REVIEW,), work.send_back, gettext_lazy("It is sent back.")),
    "comment": Deed(NeededCommentForm, (WORK, REVIEW, ASSIGN), _add_comment, gettext_lazy("The comment is added.")),
}
SAME_FORM = {"submit": "finish", "send-back": "approve"}


def permitted(request: HttpRequest, item: WorkItem, name: str) -> bool:
    """Tell whether the user may do this with an item. What another person has is for those who assign."""
    codenames = DEEDS[name].codenames
    if name in ("take", "release"):
        codenames = (REVIEW,) if item.state == IN_REVIEW else (WORK,)
        if item.assignee not in ("", user_name(request)) and not may_on(request.user, item.topic, ASSIGN):
            return False
    return may_on(request.user, item.topic, *codenames)


def fitting(item: WorkItem, user: str) -> list[str]:
    """Return what makes sense to do with an item, whose forms its page shows to a user."""
    own = item.assignee in ("", user)
    fits = {
        "take": item.state != DONE and item.assignee != user and (item.state == OPEN or item.author != user),
        "release": item.state != DONE and item.assignee != "",
        "assign": item.state != DONE,
        "later": item.state == OPEN and own,
        "finish": item.state == OPEN and own,
        "approve": item.state == IN_REVIEW and own and item.author != user,
        "comment": True,
    }
    return [name for name in fits if fits[name]]


class SeenByPeople(ReadOnlyAdmin):
    """A page for all who may see items."""

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Tell whether the user may see items at all, or this one."""
        if obj is not None:
            return may_on(request.user, obj.topic, *SEEN_BY)
        return any(request.user.has_perm(f"{APP}.{one}") for one in SEEN_BY)

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Tell whether the user finds the list in the index."""
        return self.has_view_permission(request)


@admin.register(WorkItem)
class WorkItemAdmin(SeenByPeople, KeysetAdmin):
    """The list of the items that the user may see, newest first."""

    change_list_template = "admin/sqlqueue_people/work_items.html"
    list_display = ("id", "topic", "why", "key_and_id", "status", "assigned_to", "due_at", "handed_over_at")
    list_filter = ("state",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[WorkItem]:
        """Return the items of the topics that the user may see, without what is large."""
        return super().get_queryset(request).defer(*HEAVY).exclude(topic__in=closed_topics(request.user))

    @admin.display(description=gettext_lazy("reason"))
    def why(self, item: WorkItem) -> str:
        """Show the beginning of the reason."""
        return Truncator(harmless(item.reason or "")).chars(MOST_OF_A_REASON) or "–"

    @admin.display(description=gettext_lazy("key and id"))
    def key_and_id(self, item: WorkItem) -> str:
        """Show the message's key and id, cut where they are long."""
        return key_id(item.partition_key, item.message_id)

    @admin.display(description=gettext_lazy("state"))
    def status(self, item: WorkItem) -> str:
        """Show the state."""
        return tag(item.get_state_display()) if item.state == IN_REVIEW else str(item.get_state_display())

    @admin.display(description=gettext_lazy("assignee"))
    def assigned_to(self, item: WorkItem) -> str:
        """Show who has it."""
        return item.assignee or "–"

    def get_urls(self) -> list[URLPattern]:
        """Add the download of bytes."""
        body = self.admin_site.admin_view(self.body_view)
        return [path("<int:number>/body/", body, name="sqlqueue_people_workitem_body"), *super().get_urls()]

    def body_view(self, request: HttpRequest, number: int) -> HttpResponse:
        """Return the bytes of an item as a file to save."""
        require_on(request, self._item(request, str(number)).topic, *SEEN_BY)
        return download(self.log, WorkItem, number)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Show an item (GET), and do something with it (POST)."""
        item = self._item(request, unquote(object_id))
        require_on(request, item.topic, *SEEN_BY)
        if request.method != "POST":
            return self._page(request, item, {})
        name, version = request.POST.get("deed", ""), request.POST.get("version", "")
        if name not in DEEDS or not (version.isascii() and version.isdigit() and len(version) < 10):
            raise BadRequest("deed and version say what to do with a work item")
        if not permitted(request, item, name):
            raise PermissionDenied
        deed = DEEDS[name]
        form = _form(item, name, request.POST)
        if form.is_valid():
            try:
                if name != "comment" and int(version) != item.version:  # the permission is of the item as it was read
                    raise WorkItemChanged(work.CHANGED)
                values, comment = [form.cleaned_data[one] for one in deed.values], form.cleaned_data["comment"]
                deed.run(item.pk, int(version), user_name(request), *values, comment=comment)
            except SqlqueueError as error:
                form.add_error(None, str(error))
                item = self._item(request, object_id)  # as it is now
            else:
                remember_change(request)
                messages.success(request, str(deed.done))
                return HttpResponseRedirect(request.path)
        return self._page(request, item, {name: form})

    def _item(self, request: HttpRequest, object_id: str) -> WorkItem:
        key = object_id if object_id.isascii() and object_id.isdigit() and len(object_id) < 19 else "0"
        item = WorkItem.objects.using(current_log().alias).defer("body").filter(pk=int(key)).first()
        if item is None:
            raise Http404
        return item

    def _page(self, request: HttpRequest, item: WorkItem, bound: Mapping[str, forms.Form]) -> HttpResponse:
        shown = [name for name in fitting(item, user_name(request)) if permitted(request, item, name)]
        given = {SAME_FORM.get(name, name): form for name, form in bound.items()}
        errors = [error for name, form in given.items() if name not in shown for error in form.non_field_errors()]
        found = item.events.using(current_log().alias).order_by("-pk")[: MOST_EVENTS + 1]
        events = list(found)
        context = {
            "item": item,
            "errors": errors,
            "forms": {name: given.get(name) or _form(item, name) for name in shown},
            "payload": _text(item.payload),
            "filled_in": None if item.form is None else _text(item.form),
            "result": None if item.result is None else _text(item.result),
            "events": [
                (event, None if event.result is None else _text(event.result)) for event in events[:MOST_EVENTS]
            ],
            "more_events": len(events) > MOST_EVENTS,
            "message_url": self._message_url(request, item),
            "mine": reverse(f"{self.admin_site.name}:{MINE}"),
        }
        return show(self, request, "work_item", _("Work item %d") % item.pk, context, APP)

    def _message_url(self, request: HttpRequest, item: WorkItem) -> str:
        """Return the URL of the message's page; "" if the user may not see it, or the log has it no more."""
        request.current_app = self.admin_site.name
        messages_there = Message.objects.using(current_log().alias).filter(pk=item.message_offset)
        return page_url(request, "message", "change", item.message_offset) if messages_there.exists() else ""


@admin.register(MyWork)
class MyWorkAdmin(SeenByPeople):
    """A page instead of a list."""

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show what the user has to do: what is due, the user's own, what is put off, the teams', the unassigned."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        user = request.user
        found = own_work(current_log(), user_name(request), team_topics(user), closed_topics(user))
        context = {"sections": [(HEADINGS[one.name], one) for one in found], "most": MOST_LISTED}
        return show(self, request, "my_work", _("My work"), context, APP)


def _form(item: WorkItem, name: str, data: Mapping[str, Any] | None = None) -> CommentForm:
    return DEEDS[name].form(item, data, auto_id=f"{name}_%s")


def _text(value: Any) -> str:
    """Return JSON to be read; it says so if it is cut."""
    return indented(value, MOST_OF_A_PAYLOAD, _("… and more"))
