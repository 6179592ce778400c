"""The overview: how every topic and group stands, what needs attention, and how the last hours went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from sqlqueue.admin.charts import Chart, Span, chart
from sqlqueue.admin.durations import duration
from sqlqueue.admin.links import page
from sqlqueue.admin.pages import show
from sqlqueue.admin.permissions import ReadOnlyAdmin
from sqlqueue.admin.problems import Problem, problems
from sqlqueue.conf import settings
from sqlqueue.models import ConsumerGroup, Overview
from sqlqueue.observe.activity import Rate, lags, rates, totals
from sqlqueue.observe.survey import GroupSurvey, Survey, TopicSurvey, survey

HOURS = (1, 6, 24, 168)
USUAL_HOURS = 6
RECENT = timedelta(hours=1)  # what a group's own small chart shows


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group as the page shows it. url, letters: the addresses of its own page, and of its dead letters."""

    url: str
    letters: str
    seen: GroupSurvey
    rate: Rate
    lag: Chart | None
    words: Sequence[str]

    @property
    def oldest(self) -> str:
        """The age of the oldest message that is not acked."""
        return "–" if self.seen.oldest_age is None else duration(self.seen.oldest_age)

    @property
    def drained(self) -> str:
        """When the lag will be gone, if it goes on falling as it has."""
        return drained(self.seen, self.rate)


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic and its groups."""

    url: str
    seen: TopicSurvey
    groups: Sequence[GroupRow]

    @property
    def retention(self) -> str:
        """How long it keeps messages."""
        return _("for ever") if self.seen.retention is None else duration(self.seen.retention)


def drained(group: GroupSurvey, rate: Rate) -> str:
    """Return when a group's lag will be gone at the pace of the last minutes, in words; "" if there is none."""
    if not group.lag:
        return ""
    if rate.falling is None:
        return _("pace not known yet")
    if rate.falling > 0:
        return _("gone in about %(time)s") % {"time": duration(group.lag / rate.falling)}
    return _("grows") if rate.falling < 0 else _("does not fall")


def states(group: GroupSurvey) -> list[str]:
    """Return the words that say how a group is; none if nothing is to be said."""
    words = []
    if group.paused:
        words.append(_("paused"))
    if group.away:
        words.append(_("away: holds back collection"))
    elif group.stuck:
        words.append(_("stuck"))
    if group.unowned:
        words.append(_("%(count)d without owner") % {"count": group.unowned})
    return words


def hours_asked(request: HttpRequest) -> int:
    """Return for how many hours the charts are to be."""
    given = request.GET.get("hours", "")
    return int(given) if given in {str(hours) for hours in HOURS} else USUAL_HOURS


def all_charts(alias: str, span: Span) -> list[Chart]:
    """Return throughput, lag and failures of all groups together."""
    rows = totals(alias, span.since)
    return three_charts(
        span,
        [(row["minute"], row["acked"]) for row in rows],
        [(row["minute"], row["lag"]) for row in rows],
        [(row["minute"], row["retried"] + row["dead"]) for row in rows],
    )


def three_charts(
    span: Span,
    acked: Sequence[tuple[datetime, float]],
    lag: Sequence[tuple[datetime, float | None]],
    failed: Sequence[tuple[datetime, float]],
) -> list[Chart]:
    """Return the charts of these minutes, oldest first."""
    return [
        chart("throughput", _("Acknowledged a second"), "bars", span.sums(acked), span),
        chart("lag", _("Lag in messages"), "line", span.latest(lag), span),
        chart("failures", _("Failures a second"), "failures", span.sums(failed), span),
    ]


class Rows:
    """Composes the page's rows for one request: everything that they have in common is read once, in three
    statements."""

    def __init__(self, request: HttpRequest, alias: str, seen: Survey):
        self.request, self.seen = request, seen
        groups = ConsumerGroup.objects.using(alias).values_list("id", "topic", "consumer_group")
        self._keys = {(topic, group): key for key, topic, group in groups}
        self._rates = rates(alias, seen.taken_at)
        self._lags = lags(alias, seen.taken_at - RECENT)

    def topics(self) -> list[TopicRow]:
        """Return every topic with its groups."""
        return [self._topic(topic) for topic in self.seen.topics]

    def topic(self, name: str) -> TopicRow | None:
        """Return one topic; None for one of dead letters."""
        return next((self._topic(topic) for topic in self.seen.topics if topic.name == name), None)

    def group(self, topic: str, group: str) -> GroupRow | None:
        """Return one group; None if it is not registered."""
        seen = self.seen.group(topic, group)
        return None if seen is None else self._group(seen)

    def problems_of(self, topic: str, group: str) -> list[tuple[Problem, list[tuple[str, str]]]]:
        """Return what needs attention of one group, each with links (text, address)."""
        return [(one, links) for one, links in self.problems() if (one.topic, one.group) == (topic, group)]

    def problems(self) -> list[tuple[Problem, list[tuple[str, str]]]]:
        """Return what needs attention, each with links (text, address)."""
        return [(one, self._links(one)) for one in problems(self.seen)]

    def _topic(self, topic: TopicSurvey) -> TopicRow:
        groups = [group for group in self.seen.groups if group.topic == topic.name]
        url = page(self.request, "topic", "change", topic.name)
        return TopicRow(url, topic, [self._group(group) for group in groups])

    def _group(self, group: GroupSurvey) -> GroupRow:
        place, title = (group.topic, group.group), _("Lag in the last hour")
        looks, span = self._lags.get(place, []), Span(self.seen.taken_at, RECENT)
        small = chart(f"lag-{self._keys.get(place)}", title, "line", span.latest(looks), span) if looks else None
        rate = self._rates.get(place, Rate(0.0, 0.0, None))
        return GroupRow(
            self._url(place),
            letters_page(self.request, group),
            group,
            rate,
            small,
            states(group),
        )

    def _url(self, place: tuple[str, str]) -> str:
        key = self._keys.get(place)
        return "" if key is None else page(self.request, "consumergroup", "change", key)

    def _links(self, problem: Problem) -> list[tuple[str, str]]:
        links = []
        if problem.offset is not None:
            text = _("Message %(offset)d") % {"offset": problem.offset}
            links.append((text, page(self.request, "message", "change", problem.offset)))
        if problem.group:
            links.append((_("The group's page"), self._url((problem.topic, problem.group))))
        if problem.scheduled:
            links.append((_("Scheduled messages"), page(self.request, "scheduledmessage", "changelist")))
        return links


def letters_page(request: HttpRequest, group: GroupSurvey) -> str:
    """Return the address of a group's dead letters."""
    return page(request, "message", "dead_letters", topic=group.topic, group=group.group)


@admin.register(Overview)
class OverviewAdmin(ReadOnlyAdmin):
    """One page in the place of a list: it needs "sqlqueue.view_overview"."""

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show how everything stands."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        alias, hours = settings.DATABASE, hours_asked(request)
        seen = survey(alias)
        request.current_app = self.admin_site.name
        rows = Rows(request, alias, seen)
        context = {
            "seen": seen,
            "horizon_age": duration(seen.horizon_age),
            "problems": rows.problems(),
            "topics": rows.topics(),
            "charts": all_charts(alias, Span(seen.taken_at, timedelta(hours=hours))),
            "hours": hours,
            "choices": HOURS,
            **(extra_context or {}),
        }
        return show(self, request, "overview", _("Overview of the message queue"), context)
