"""The overview: the stats of every topic and group, what needs attention, and charts of the last hours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext as _

from sqlqueue.admin.attention import VisibleFindings, visible_findings
from sqlqueue.admin.charts import Chart, TimeRange, chart
from sqlqueue.admin.navigation import arrange, internals
from sqlqueue.admin.pages import ReadOnlyAdmin, list_log, page_url, replica, show
from sqlqueue.core.effects import texts
from sqlqueue.database.log import Log
from sqlqueue.models import ConsumerGroup, Overview
from sqlqueue.stats.attention import findings, findings_of_group
from sqlqueue.stats.groups import GroupSurvey, states
from sqlqueue.stats.survey import Survey, survey
from sqlqueue.stats.texts import duration
from sqlqueue.stats.throughput import lags, totals
from sqlqueue.stats.topics import TopicSurvey

HOURS = (1, 6, 24, 168)
USUAL_HOURS = 6
RECENT = timedelta(hours=1)  # shown by the small chart of a group


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group as the page shows it. url, dead_letters_url: of its page, and of its dead letters ("": the user may not
    see them)."""

    url: str
    dead_letters_url: str
    stats: GroupSurvey
    lag: Chart | None
    states: Sequence[str]

    @property
    def oldest(self) -> str:
        """The age of the oldest message that is not acked."""
        return "–" if self.stats.oldest_age is None else duration(self.stats.oldest_age)


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic and its groups as the page shows them."""

    url: str
    stats: TopicSurvey
    groups: Sequence[GroupRow]

    @property
    def retention(self) -> str:
        """Its retention as a text."""
        return _("for ever") if self.stats.retention is None else duration(self.stats.retention)

    @property
    def counts(self) -> list[str]:
        """What effects have of it, as texts."""
        return texts(self.stats.counts)


def requested_hours(request: HttpRequest) -> int:
    """Return for how many hours the request asks for charts."""
    given = request.GET.get("hours", "")
    return int(given) if given in {str(hours) for hours in HOURS} else USUAL_HOURS


def all_charts(log: Log, time_range: TimeRange) -> list[Chart]:
    """Return charts of the throughput, lag and failures of all groups together."""
    rows = totals(log, time_range.since)
    return three_charts(
        time_range,
        [(row["minute"], row["acked"]) for row in rows],
        [(row["minute"], row["lag"]) for row in rows],
        [(row["minute"], row["retried"] + row["dead"]) for row in rows],
    )


def three_charts(
    time_range: TimeRange,
    acked: Sequence[tuple[datetime, float]],
    lag: Sequence[tuple[datetime, float | None]],
    failed: Sequence[tuple[datetime, float]],
) -> list[Chart]:
    """Return charts of throughput, lag and failures from values by minute, oldest first."""
    return [
        chart("throughput", _("Acknowledged a second"), "bars", time_range.sums(acked), time_range),
        chart("lag", _("Lag in messages"), "line", time_range.latest(lag), time_range),
        chart("failures", _("Failures a second"), "failures", time_range.sums(failed), time_range),
    ]


class OverviewRows:
    """Makes the rows of topics and groups for one request. Two statements read what they have in common."""

    def __init__(self, request: HttpRequest, log: Log, stats: Survey):
        self.request, self.stats = request, stats
        groups = ConsumerGroup.objects.using(log.alias).values_list("id", "topic", "consumer_group")
        self._keys = {(topic, group): key for key, topic, group in groups}
        self._lags = lags(log, stats.taken_at - RECENT)

    def topics(self) -> list[TopicRow]:
        """Return every topic with its groups."""
        return [self._topic(topic) for topic in self.stats.topics]

    def topic(self, name: str) -> TopicRow | None:
        """Return one topic; None for a dead-letter topic."""
        return next((self._topic(topic) for topic in self.stats.topics if topic.name == name), None)

    def group(self, topic: str, group: str) -> GroupRow | None:
        """Return one group; None if it is not registered."""
        stats = self.stats.group(topic, group)
        return None if stats is None else self._group(stats)

    def attention(self) -> VisibleFindings:
        """Return what needs attention."""
        return visible_findings(self.request, findings(self.stats), self._url)

    def attention_of(self, topic: str, group: str) -> VisibleFindings:
        """Return what needs attention of one group."""
        stats = self.stats.group(topic, group)
        found = findings_of_group(self.stats, stats) if stats else ()
        return visible_findings(self.request, found, self._url)

    def _topic(self, topic: TopicSurvey) -> TopicRow:
        groups = [group for group in self.stats.groups if group.topic == topic.name]
        url = page_url(self.request, "topic", "change", topic.name)
        return TopicRow(url, topic, [self._group(group) for group in groups])

    def _group(self, group: GroupSurvey) -> GroupRow:
        group_topic = (group.topic, group.group)
        return GroupRow(
            self._url(group_topic),
            dead_letters_url(self.request, group),
            group,
            self._lag_chart(group_topic),
            states(group),
        )

    def _lag_chart(self, group_topic: tuple[str, str]) -> Chart | None:
        lags_by_minute = self._lags.get(group_topic)
        if not lags_by_minute:
            return None
        time_range, name = TimeRange(self.stats.taken_at, RECENT), f"lag-{self._keys.get(group_topic)}"
        return chart(name, _("Lag in the last hour"), "line", time_range.latest(lags_by_minute), time_range)

    def _url(self, group_topic: tuple[str, str]) -> str:
        key = self._keys.get(group_topic)
        return "" if key is None else page_url(self.request, "consumergroup", "change", key)


def dead_letters_url(request: HttpRequest, group: GroupSurvey) -> str:
    """Return the URL of a group's dead letters; "" if the user may not see them."""
    return page_url(request, "message", "dead_letters", topic=group.topic, group=group.group)


@admin.register(Overview)
class OverviewAdmin(ReadOnlyAdmin):
    """A page instead of a list. It needs the permission `view_overview`."""

    def __init__(self, model: type[Overview], admin_site: admin.AdminSite) -> None:
        super().__init__(model, admin_site)
        arrange(admin_site)

    def get_urls(self) -> list[URLPattern]:
        """Add the page of internals."""
        view = self.admin_site.admin_view(self.internals_view)
        return [path("internals/", view, name="sqlqueue_overview_internals"), *super().get_urls()]

    def internals_view(self, request: HttpRequest) -> HttpResponse:
        """List the internal tables that the user may view. Raises PermissionDenied if there are none."""
        tables = internals(self.admin_site, request)
        if not tables:
            raise PermissionDenied
        return show(self, request, "internals", _("Internals"), {"tables": tables})

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the stats of all topics and groups."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        log, hours = list_log(request), requested_hours(request)
        stats = survey(log)
        request.current_app = self.admin_site.name
        rows = OverviewRows(request, log, stats)
        context = {
            "stats": stats,
            "horizon_age": duration(stats.horizon_age),
            "attention": rows.attention(),
            "topics": rows.topics(),
            "charts": all_charts(log, TimeRange(stats.taken_at, timedelta(hours=hours))),
            "replica": replica(log),
            "hours": hours,
            "choices": HOURS,
            **(extra_context or {}),
        }
        return show(self, request, "overview", _("Overview of the message queue"), context)
