"""The order of the queue's pages in a site's index and sidebar: those that are needed most first, and internals behind
one entry.

Django sorts the models of an app by their names. The overview replaces `get_app_list` of the site that registers it, so
that the order holds in the default site and in a project's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib.admin import AdminSite
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sqlqueue.admin.pages import may

APP = "sqlqueue"
FIRST = (
    "Overview",
    "DeadLetters",
    "Message",
    "ConsumerGroup",
    "Topic",
    "ScheduledMessage",
    "PeriodicSchedule",
    "Batch",
    "Request",
)
INTERNALS = {
    "SubscriberHeartbeat": gettext_lazy("Consumer processes that are alive, and the activity of each."),
    "PartitionLease": gettext_lazy("The owner of each partition of each group."),
    "Offset": gettext_lazy("The position and the watermark of each group in each partition."),
    "DeliveryState": gettext_lazy("Messages that have a row of their own for a group: failing, waiting, in flight."),
    "BlockedRange": gettext_lazy("Messages that wait behind an earlier one of their key."),
    "CollectedMessage": gettext_lazy("Messages that collection has moved out of the log, with their outcomes."),
    "Receipt": gettext_lazy("The outcomes of deliveries, as far as a topic's history keeps them."),
}

Entry = dict[str, Any]  # of Django's list of models
Arranged = Callable[[AdminSite, HttpRequest, list[Entry]], list[Entry]]


def arrange(site: AdminSite) -> None:
    """Make a site list the queue's pages in the order of FIRST."""
    arrange_app(site, APP, _arranged)


def arrange_app(site: AdminSite, label: str, arranged: Arranged) -> None:
    """Make a site list the pages of an app as a function returns them. A second call for the same site and app changes
    nothing."""
    inner = site.get_app_list
    done: frozenset[str] = getattr(inner, "arranged", frozenset())
    if label in done:
        return

    def get_app_list(request: HttpRequest, app_label: str | None = None) -> list[Any]:
        apps: list[Any] = inner(request, app_label)
        for app in apps:
            if app["app_label"] == label:
                app["models"] = arranged(site, request, app["models"])
                _mark_current(app["models"], request.path)
        return apps

    get_app_list.arranged = done | {label}  # type: ignore[attr-defined]
    site.get_app_list = get_app_list  # type: ignore[method-assign]


def internals(site: AdminSite, request: HttpRequest) -> list[tuple[str, str, Any]]:
    """Return the tables behind the entry "Internals" that the user may view: name, URL, and what each holds."""
    registered = site._registry.items()
    pages = {model._meta.object_name: (model, page) for model, page in registered if model._meta.app_label == APP}
    found = []
    for name, text in INTERNALS.items():
        model, page = pages.get(name, (None, None))
        if model is not None and page is not None and page.has_view_permission(request):
            url = reverse(f"{site.name}:{APP}_{model._meta.model_name}_changelist")
            found.append((capfirst(str(model._meta.verbose_name_plural)), url, text))
    return found


def _arranged(site: AdminSite, request: HttpRequest, models: list[Entry]) -> list[Entry]:
    shown = [entry for entry in models if entry["object_name"] not in INTERNALS]
    if may(request, "view_message"):
        shown += page_entry(site, "DeadLetters", _("Dead letters"), f"{APP}_message_dead_letters")
    shown.sort(key=lambda entry: _rank(entry["object_name"]))  # the others after these, sorted by name as before
    if any(entry["object_name"] in INTERNALS for entry in models):
        shown += page_entry(site, "Internals", _("Internals"), f"{APP}_overview_internals")
    return shown


def _rank(name: str) -> int:
    return FIRST.index(name) if name in FIRST else len(FIRST)


def page_entry(site: AdminSite, name: str, text: str, page: str) -> list[Entry]:
    """Return an entry for a page that is no model's list; nothing if the site has not registered the page's model."""
    try:
        url = reverse(f"{site.name}:{page}")
    except NoReverseMatch:
        return []
    permissions = {"add": False, "change": False, "delete": False, "view": True}
    entry = {"name": text, "object_name": name, "admin_url": url, "model": None, "add_url": None, "view_only": True}
    return [{**entry, "perms": permissions}]


def _mark_current(entries: list[Entry], path: str) -> None:
    """Leave one entry that Django marks as the current page. It marks each entry whose URL is part of the current path,
    so on the page of dead letters that of the messages as well. A URL that ends with "?" leads to the same page, and is
    not part of the path."""
    matching = [entry for entry in entries if entry.get("admin_url") and entry["admin_url"] in path]
    for entry in sorted(matching, key=lambda entry: len(entry["admin_url"]))[:-1]:
        entry["admin_url"] += "?"
