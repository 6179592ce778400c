"""What all pages have in common: permissions, addresses, the log that they read, and the sites that list them."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from django.contrib import admin
from django.contrib.admin import AdminSite
from django.contrib.admin.utils import quote
from django.db.models import QuerySet
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, URLPattern, reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _

from sqlqueue.admin.cells import with_harmless_page
from sqlqueue.conf import settings
from sqlqueue.core.outcomes import storable
from sqlqueue.database.log import Log, home_log, reading_log
from sqlqueue.log.placement import known_log
from sqlqueue.stats.processes import newest_heartbeat
from sqlqueue.stats.texts import duration

NUMBER = re.compile(r"-?[0-9]{1,18}", re.ASCII)  # an integer key in a request
VIEWED_BY = {"deadletter": "view_message"}  # the permission to view a model that has none of its own
CHANGED = "sqlqueue_changed"  # in the session: when its user last changed something, by the web server's clock
OWN_CHANGE_SEEN = 60.0  # seconds after a change for which its user's lists are read from the queue's own database

APP = "sqlqueue"
# The models whose pages are needed most. The tables that these pages are made from follow, by name.
FIRST = {
    "Overview": 0,
    "DeadLetter": 1,
    "Message": 2,
    "ConsumerGroup": 3,
    "Topic": 4,
    "ScheduledMessage": 5,
    "PeriodicSchedule": 6,
    "Request": 7,
}

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin


def may(request: HttpRequest, codename: str) -> bool:
    """Tell whether the user has one of the queue's permissions, such as "redeliver_message", or another app's, such as
    "sqlqueue_people.view_workitem"."""
    return bool(request.user.has_perm(codename if "." in codename else f"sqlqueue.{codename}"))


def user_name(request: HttpRequest) -> str:
    """Return the user's name as the queue's tables keep it: text, also where a project's user model names users by
    UUIDs or numbers."""
    return str(request.user.get_username())


class ReadOnlyAdmin(ModelAdmin):
    """Shows a table of the queue's database to users who may view it. Only operations change it."""

    @property
    def urls(self) -> list[URLPattern]:
        """The URLs of its pages, on which nothing is obeyed by a browser."""
        patterns: list[URLPattern] = self.get_urls()
        for one in patterns:
            one.callback = with_harmless_page(one.callback)
        return patterns

    @property
    def log(self) -> Log:
        """The log that the pages are about."""
        return getattr(self.admin_site, "sqlqueue_log", None) or home_log()

    @property
    def has_bytes(self) -> bool:
        """Whether rows may have a payload of bytes."""
        return any(field.name == "body" for field in self.opts.fields)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the rows on the queue's database, whether its router is installed or not; without bytes, which no page
        shows."""
        rows = super().get_queryset(request).using(self.log.alias)
        return rows.defer("body") if self.has_bytes else rows

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return the row with the key of a URL, None if there is none. The key may have characters that a database
        refuses."""
        return super().get_object(request, storable(object_id), from_field)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Tell whether the user may view the model: to change it is another permission, and needs this one, too."""
        name = str(self.opts.model_name)
        return may(request, f"{self.opts.app_label}.{VIEWED_BY.get(name, f'view_{name}')}")

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: only operations change rows, add some, or delete some."""
        return False

    has_add_permission = has_delete_permission = has_change_permission


def page_url(request: HttpRequest, model: str, name: str, key: int | str | None = None, **query: str) -> str:
    """Return the URL of a model's page ("changelist", "change", …) in the current admin site; "" if the user may not
    view the model, or the site has not registered it."""
    if not may(request, VIEWED_BY.get(model, f"view_{model}")):
        return ""
    site = getattr(request, "current_app", "admin")
    try:
        url = reverse(f"admin:sqlqueue_{model}_{name}", args=[] if key is None else [quote(key)], current_app=site)
    except NoReverseMatch:
        return ""
    return f"{url}?{urlencode(query)}" if query else url


class Replica(NamedTuple):
    """What a page says of the replica that it was read from. behind: the age of the newest heartbeat there, as a text;
    "" if there is none."""

    log: Log
    behind: str


def list_log(log: Log, request: HttpRequest) -> Log:
    """Return the log that a list, a chart or a search of a log is read from."""
    found = reading_log(log)
    if found == log or request.method not in ("GET", "HEAD"):
        return log
    changed = request.session.get(CHANGED)
    recently = changed is not None and abs(time.time() - changed) < OWN_CHANGE_SEEN
    return log if recently else found


def replica(log: Log) -> Replica | None:
    """Return what the page says that was read from a log; None unless it is the replica."""
    if not settings.is_replica(log.alias):
        return None
    age = newest_heartbeat(log)
    return Replica(log, "" if age is None else duration(age))


def remember_change(request: HttpRequest) -> None:
    """Let the user see on lists what was changed: these are read from the queue's own database for a while."""
    if settings.is_replica(reading_log(home_log()).alias):
        request.session[CHANGED] = time.time()


def show(
    model_admin: ModelAdmin,
    request: HttpRequest,
    template: str,
    title: object,
    context: Mapping[str, Any],
    app: str = "sqlqueue",
) -> TemplateResponse:
    """Return a page of a model's admin, with the context of its site. template: its name below admin/APP/, without the
    suffix."""
    site = model_admin.admin_site
    request.current_app = site.name
    base = {**site.each_context(request), "title": title, "opts": model_admin.opts}
    return TemplateResponse(request, f"admin/{app}/{template}.html", {**base, **context})


def arrange(site: AdminSite) -> None:
    """Make a site list the queue's pages in the order of FIRST: Django sorts the models of an app by their names.

    The overview calls it for the site that registers it, so that the order holds in the default site and in a project's
    own.
    """
    inner = site.get_app_list

    def get_app_list(request: HttpRequest, app_label: str | None = None) -> list[Any]:
        apps: list[Any] = inner(request, app_label)
        for app in apps:
            if app["app_label"] == APP:
                app["models"].sort(key=lambda entry: FIRST.get(entry["object_name"], len(FIRST)))
        return apps

    site.get_app_list = get_app_list  # type: ignore[method-assign]


class DatabaseSite(AdminSite):
    """The queue's pages over one log. `sqlqueue.admin.database_site` makes one."""

    def __init__(self, database: str):
        super().__init__(name=f"sqlqueue_{database}")
        self.sqlqueue_log = known_log(database)
        self.site_header = self.index_title = _("Database %(database)s") % {"database": database}
        self.site_title = self.site_header

    def each_context(self, request: HttpRequest) -> dict[str, Any]:
        """Name the database on each page."""
        return {**super().each_context(request), "sqlqueue_log": self.sqlqueue_log}
