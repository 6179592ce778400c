"""The overview: the stats of every topic and group, the findings, and charts of the last hours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from sqlqueue.admin.charts import Chart, TimeRange, chart, three_charts
from sqlqueue.admin.pages import ReadOnlyAdmin, arrange, list_log, page_url, replica, show
from sqlqueue.core.effects import texts
from sqlqueue.database.log import Log
from sqlqueue.models import ConsumerGroup, Overview
from sqlqueue.stats.attention import findings
from sqlqueue.stats.findings import CHANGE, DEAD_LETTERS, LATE, REFUSED, UNREAD, Finding
from sqlqueue.stats.groups import GroupSurvey, states
from sqlqueue.stats.survey import Survey, survey
from sqlqueue.stats.throughput import lags, minutes
from sqlqueue.stats.topics import TopicSurvey

HOURS = (1, 6, 24, 168)
USUAL_HOURS = 6
RECENT = timedelta(hours=1)  # shown by the small chart of a group

Link = tuple[str, str]  # text and URL, "" if the user may not see the page
LINKS: dict[str, Callable[[HttpRequest], Link]] = {}  # of findings of effects: their apps' admin adds them


def charts(request: HttpRequest, log: Log, until: datetime, **only: str) -> dict[str, Any]:
    """Return the charts of the hours before a time that the request asks for, of one group or of all, and the choices
    that a user has."""
    given = request.GET.get("hours", "")
    hours = int(given) if given in {str(hours) for hours in HOURS} else USUAL_HOURS
    time_range = TimeRange(until, timedelta(hours=hours))
    return {
        "charts": three_charts(time_range, minutes(log, time_range.since, **only)),
        "hours": hours,
        "choices": HOURS,
    }


class OverviewRows:
    """Makes the rows of topics and groups for one request. Two statements read what they have in common."""

    def __init__(self, request: HttpRequest, log: Log, stats: Survey):
        self.request, self.stats = request, stats
        groups = ConsumerGroup.objects.using(log.alias).values_list("id", "topic", "consumer_group")
        self._keys = {(topic, group): key for key, topic, group in groups}
        self._lags = lags(log, stats.taken_at - RECENT)

    def topic(self, topic: TopicSurvey) -> dict[str, Any]:
        """Return a topic with its groups, and what effects have of it, as texts."""
        return {
            "stats": topic,
            "url": page_url(self.request, "topic", "change", topic.name),
            "groups": [self.group(group) for group in self.stats.groups if group.topic == topic.name],
            "counts": texts(topic.counts),
        }

    def group(self, group: GroupSurvey) -> dict[str, Any]:
        """Return a group with the URLs of its page and its dead letters, "" if the user may not see them."""
        return {
            "stats": group,
            "url": self._url(group.topic, group.group),
            "dead_letters_url": page_url(
                self.request, "deadletter", "changelist", topic=group.topic, group=group.group
            ),
            "states": states(group),
            "lag": self._lag_chart(group.topic, group.group),
        }

    def _lag_chart(self, topic: str, group: str) -> Chart | None:
        by_minute = self._lags.get((topic, group))
        if not by_minute:
            return None
        time_range = TimeRange(self.stats.taken_at, RECENT)
        name = f"lag-{self._keys.get((topic, group))}"
        return chart(name, _("Lag in the last hour"), time_range.latest(by_minute), time_range)

    def _url(self, topic: str, group: str) -> str:
        key = self._keys.get((topic, group))
        return "" if key is None else page_url(self.request, "consumergroup", "change", key)

    def linked(self, every: Iterable[Finding]) -> list[tuple[Finding, list[Link]]]:
        """Return findings, each with links to the pages where something can be done about it."""
        return [(one, list(self._links(one))) for one in every]

    def _links(self, finding: Finding) -> Iterator[Link]:
        if finding.offset is not None:
            text = _("Message %(offset)d") % {"offset": finding.offset}
            yield text, page_url(self.request, "message", "change", finding.offset)
        if finding.kind == DEAD_LETTERS:
            query = {"topic": finding.topic, "group": finding.group} if finding.group else {"topic": finding.topic}
            yield _("Its dead letters"), page_url(self.request, "deadletter", "changelist", **query)
        if finding.group:
            yield _("The group's page"), self._url(finding.topic, finding.group)
        if finding.kind in (UNREAD, CHANGE):
            yield _("The topic's page"), page_url(self.request, "topic", "change", finding.topic)
        if finding.kind in (REFUSED, LATE):
            yield _("Scheduled messages"), page_url(self.request, "scheduledmessage", "changelist")
        if finding.kind.name in LINKS:
            yield LINKS[finding.kind.name](self.request)


@admin.register(Overview)
class OverviewAdmin(ReadOnlyAdmin):
    """A page instead of a list. It needs the permission `view_overview`."""

    def __init__(self, model: type[Overview], admin_site: admin.AdminSite) -> None:
        super().__init__(model, admin_site)
        arrange(admin_site)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the stats of all topics and groups."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        log = list_log(self.log, request)
        stats = survey(log)
        request.current_app = self.admin_site.name
        rows = OverviewRows(request, log, stats)
        context = {
            "stats": stats,
            "findings": rows.linked(findings(stats)),
            "topics": [rows.topic(one) for one in stats.topics],
            "replica": replica(log),
            **charts(request, log, stats.taken_at),
            **(extra_context or {}),
        }
        return show(self, request, "overview", _("Overview of the message queue"), context)
