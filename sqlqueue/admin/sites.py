"""Admin sites: the order of the queue's pages on each, and the sites that show another log."""

from __future__ import annotations

from typing import Any

from django.contrib.admin import AdminSite
from django.http import HttpRequest
from django.utils.translation import gettext as _

from sqlqueue.log.placement import known_log

APP = "sqlqueue"
# The models whose pages are needed most. The tables that these pages are made from follow, by name.
FIRST = (
    "Overview",
    "DeadLetter",
    "Message",
    "ConsumerGroup",
    "Topic",
    "ScheduledMessage",
    "PeriodicSchedule",
    "Request",
)


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
                app["models"].sort(key=lambda entry: _rank(entry["object_name"]))
        return apps

    site.get_app_list = get_app_list  # type: ignore[method-assign]


def _rank(name: str) -> int:
    return FIRST.index(name) if name in FIRST else len(FIRST)


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
