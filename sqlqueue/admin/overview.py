"""The overview: the stats of every topic and group, the findings, and charts of the last hours, as inline SVG with a
description for screen readers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.utils import formats
from django.utils.translation import gettext as _

from sqlqueue.admin.pages import ReadOnlyAdmin, arrange, list_log, page_url, replica, show
from sqlqueue.core.effects import texts
from sqlqueue.database.log import Log
from sqlqueue.models import ConsumerGroup, Overview
from sqlqueue.stats.attention import findings
from sqlqueue.stats.findings import CHANGE, DEAD_LETTERS, LATE, REFUSED, UNREAD, Finding
from sqlqueue.stats.groups import GroupSurvey, states
from sqlqueue.stats.survey import Survey, survey
from sqlqueue.stats.texts import moment
from sqlqueue.stats.throughput import lags, minutes
from sqlqueue.stats.topics import TopicSurvey

WIDTH, HEIGHT = 320, 80
BUCKETS = 60

Value = float | None


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart. name: for the ids of its elements; path: of the SVG, in WIDTH × HEIGHT."""

    name: str
    title: str
    description: str
    path: str
    first: str  # the time at the left end
    last: str  # the time at the right end
    axis: Sequence[str]  # the values at the top, in the middle and at the bottom

    width = WIDTH
    height = HEIGHT


@dataclass(frozen=True, slots=True)
class TimeRange:
    """The time that a chart shows, in BUCKETS equal parts."""

    until: datetime
    length: timedelta

    @property
    def since(self) -> datetime:
        """Its start."""
        return self.until - self.length

    @property
    def part(self) -> float:
        """The length of one part in seconds."""
        return self.length.total_seconds() / BUCKETS

    def _parts(self, rows: Iterable[tuple[datetime, float | None]]) -> list[list[float]]:
        parts: list[list[float]] = [[] for _ in range(BUCKETS)]
        for minute, value in rows:
            if value is not None:
                index = int((minute - self.since).total_seconds() / self.part)
                parts[min(BUCKETS - 1, max(0, index))].append(float(value))
        return parts

    def rates(self, rows: Iterable[tuple[datetime, float | None]]) -> list[Value]:
        """Return the rate of each part: the sum of its values, a second."""
        return [sum(values) / self.part for values in self._parts(rows)]

    def latest(self, rows: Iterable[tuple[datetime, float | None]]) -> list[Value]:
        """Return the last value of each part, None for a part without one. rows: oldest first."""
        return [values[-1] if values else None for values in self._parts(rows)]

    def at(self, index: int) -> str:
        """Return the start of a part as a text."""
        return moment(self.since + timedelta(seconds=index * self.part))


def number(value: float) -> str:
    """Return a value as a text: whole, or with decimals if it is a fraction below 10."""
    decimals = 0 if value >= 10 or value == int(value) else max(2, 1 - math.floor(math.log10(value)))
    return formats.number_format(value, decimals, force_grouping=True)


def chart(name: str, title: str, values: Sequence[Value], time_range: TimeRange) -> Chart:
    """Return a chart with one value for each part of the time range."""
    known = [(index, value) for index, value in enumerate(values) if value is not None]
    top = max((value for _index, value in known), default=0.0)
    peak = next((index for index, value in known if value == top), 0)
    texts = {"since": time_range.at(0), "until": moment(time_range.until), "top": number(top)}
    texts["when"] = time_range.at(peak)
    if not known:
        description = _("From %(since)s to %(until)s: no data.") % texts
    elif top == 0:
        description = _("From %(since)s to %(until)s: 0 all the time.") % texts
    else:
        texts["last"] = number(known[-1][1])
        description = _("From %(since)s to %(until)s: %(last)s at the end, at most %(top)s at %(when)s.") % texts
    scale = rounded_up(top)
    axis = [number(part * scale) for part in (1, 0.5, 0)]
    return Chart(name, title, description, _bars(values, scale), texts["since"], texts["until"], axis)


def three_charts(time_range: TimeRange, minutes: Iterable[tuple[datetime, float, float | None, float]]) -> list[Chart]:
    """Return charts of throughput, lag and failures. minutes: the minute, what was acked, the lag, what failed, oldest
    first."""
    rows = list(minutes)
    acked = time_range.rates((minute, acked) for minute, acked, _lag, _failed in rows)
    lag = time_range.latest((minute, lag) for minute, _acked, lag, _failed in rows)
    failed = time_range.rates((minute, failed) for minute, _acked, _lag, failed in rows)
    return [
        chart("throughput", _("Acknowledged a second"), acked, time_range),
        chart("lag", _("Lag in messages"), lag, time_range),
        chart("failures", _("Failures a second"), failed, time_range),
    ]


def rounded_up(top: float) -> float:
    """Return the upper end of an axis: the next 1, 2 or 5 times a power of ten; 1 if there is no positive value."""
    if top <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(top))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= top * (1 - 1e-9))


def _bars(values: Sequence[Value], top: float) -> str:
    step, scale = WIDTH / len(values), (HEIGHT - 3) / top
    return "".join(
        f"M{index * step:.1f} {HEIGHT}V{HEIGHT - 1 - scale * value:.1f}h{step * 0.8:.1f}V{HEIGHT}z"
        for index, value in enumerate(values)
        if value
    )


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
