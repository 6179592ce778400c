"""Small charts as inline SVG, each with a description for screen readers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils import formats
from django.utils.translation import gettext as _

from sqlqueue.stats.moments import moment

WIDTH, HEIGHT = 320, 80
BUCKETS = 60

Value = float | None


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart. name: for the ids of its elements; path: of the SVG, in WIDTH × HEIGHT; kind: "bars" or
    "failures"."""

    name: str
    title: str
    description: str
    path: str
    kind: str
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

    def index(self, minute: datetime) -> int:
        """Return the part that a minute belongs to."""
        return min(BUCKETS - 1, max(0, int((minute - self.since).total_seconds() / self.part)))

    def sums(self, rows: Iterable[tuple[datetime, float]]) -> list[Value]:
        """Return the rate of each part: the sum of its values, a second."""
        parts: list[Value] = [0.0] * BUCKETS
        for minute, value in rows:
            parts[self.index(minute)] = (parts[self.index(minute)] or 0.0) + value / self.part
        return parts

    def latest(self, rows: Iterable[tuple[datetime, float | None]]) -> list[Value]:
        """Return the last value of each part, None for a part without one. rows: oldest first."""
        parts: list[Value] = [None] * BUCKETS
        for minute, value in rows:
            if value is not None:
                parts[self.index(minute)] = float(value)
        return parts

    def at(self, index: int) -> str:
        """Return the start of a part as a text."""
        return moment(self.since + timedelta(seconds=index * self.part))


def number(value: float) -> str:
    """Return a value as a text: whole, or with decimals if it is a fraction below 10."""
    decimals = 0 if value >= 10 or value == int(value) else max(2, 1 - math.floor(math.log10(value)))
    return formats.number_format(value, decimals, force_grouping=True)


def chart(name: str, title: str, kind: str, values: Sequence[Value], time_range: TimeRange) -> Chart:
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
    return Chart(name, title, description, _bars(values, scale), kind, texts["since"], texts["until"], axis)


def three_charts(time_range: TimeRange, minutes: Sequence[tuple[datetime, float, float | None, float]]) -> list[Chart]:
    """Return charts of throughput, lag and failures. minutes: the minute, what was acked, the lag, what failed, oldest
    first."""
    acked = time_range.sums((minute, acked) for minute, acked, _lag, _failed in minutes)
    lag = time_range.latest((minute, lag) for minute, _acked, lag, _failed in minutes)
    failed = time_range.sums((minute, failed) for minute, _acked, _lag, failed in minutes)
    return [
        chart("throughput", _("Acknowledged a second"), "bars", acked, time_range),
        chart("lag", _("Lag in messages"), "bars", lag, time_range),
        chart("failures", _("Failures a second"), "failures", failed, time_range),
    ]


def rounded_up(top: float) -> float:
    """Return the upper end of an axis: the next 1, 2 or 5 times a power of ten; 1 if there is no positive value."""
    if top <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(top))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= top * (1 - 1e-9))


def _bars(values: Sequence[Value], top: float) -> str:
    step = WIDTH / len(values)
    return "".join(
        f"M{index * step:.1f} {HEIGHT}V{_height(value, top):.1f}h{step * 0.8:.1f}V{HEIGHT}z"
        for index, value in enumerate(values)
        if value
    )


def _height(value: float, top: float) -> float:
    return HEIGHT - 1 - (HEIGHT - 3) * (value / top if top else 0.0)
