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
    step = WIDTH / len(values)
    return "".join(
        f"M{index * step:.1f} {HEIGHT}V{_height(value, top):.1f}h{step * 0.8:.1f}V{HEIGHT}z"
        for index, value in enumerate(values)
        if value
    )


def _height(value: float, top: float) -> float:
    return HEIGHT - 1 - (HEIGHT - 3) * (value / top if top else 0.0)
