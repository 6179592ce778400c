"""Small charts: what an inline SVG draws, and says to those who do not see it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils import formats, timezone
from django.utils.translation import gettext as _

WIDTH, HEIGHT = 320, 80
BUCKETS = 60

Value = float | None


@dataclass(frozen=True, slots=True)
class Chart:
    """name: for the ids; path: of the SVG, in WIDTH × HEIGHT; kind: "line", "bars" or "failures"."""

    name: str
    title: str
    description: str
    path: str
    kind: str
    first: str  # the time at the left
    highest: str
    last: str

    width = WIDTH
    height = HEIGHT


@dataclass(frozen=True, slots=True)
class Span:
    """The time that a chart shows, in BUCKETS parts."""

    until: datetime
    length: timedelta

    @property
    def since(self) -> datetime:
        """When it begins."""
        return self.until - self.length

    @property
    def part(self) -> float:
        """The length of one part in seconds."""
        return self.length.total_seconds() / BUCKETS

    def index(self, minute: datetime) -> int:
        """Return the part that a minute belongs to."""
        return min(BUCKETS - 1, max(0, int((minute - self.since).total_seconds() / self.part)))

    def sums(self, rows: Iterable[tuple[datetime, float]]) -> list[Value]:
        """Return the sum of each part a second."""
        parts: list[Value] = [0.0] * BUCKETS
        for minute, value in rows:
            parts[self.index(minute)] = (parts[self.index(minute)] or 0.0) + value / self.part
        return parts

    def latest(self, rows: Iterable[tuple[datetime, float | None]]) -> list[Value]:
        """Return the last value of each part, None where there is none; rows: oldest first."""
        parts: list[Value] = [None] * BUCKETS
        for minute, value in rows:
            if value is not None:
                parts[self.index(minute)] = float(value)
        return parts

    def at(self, index: int) -> str:
        """Return when a part begins, as people write it."""
        return clock(self.since + timedelta(seconds=index * self.part))


def clock(moment: datetime) -> str:
    """Return the time of day in the current time zone."""
    return formats.time_format(timezone.localtime(moment) if timezone.is_aware(moment) else moment, "TIME_FORMAT")


def number(value: float) -> str:
    """Return a figure of a chart: whole, or with two decimals if it is small."""
    return formats.number_format(value, 0 if value >= 10 or value == int(value) else 2, force_grouping=True)


def chart(name: str, title: str, kind: str, values: Sequence[Value], span: Span) -> Chart:
    """Return a chart of one value a part of the span."""
    known = [(index, value) for index, value in enumerate(values) if value is not None]
    top = max((value for _index, value in known), default=0.0)
    peak = next((index for index, value in known if value == top), 0)
    facts = {"since": span.at(0), "until": clock(span.until), "top": number(top), "when": span.at(peak)}
    if not known:
        description = _("From %(since)s to %(until)s: nobody looked.") % facts
    elif top == 0:
        description = _("From %(since)s to %(until)s: 0 all the time.") % facts
    else:
        facts["last"] = number(known[-1][1])
        description = _("From %(since)s to %(until)s: %(last)s at the end, at most %(top)s at %(when)s.") % facts
    path = _line(values, top) if kind == "line" else _bars(values, top)
    return Chart(name, title, description, path, kind, facts["since"], facts["top"], facts["until"])


def _line(values: Sequence[Value], top: float) -> str:
    """Return a line through the parts that are known; one that stands alone is a short dash."""
    step, words, drawing = WIDTH / len(values), [], False
    for index, value in enumerate(values):
        if value is None:
            drawing = False
            continue
        words.append(f"{'L' if drawing else 'M'}{index * step:.1f} {_height(value, top):.1f}h{step:.1f}")
        drawing = True
    return "".join(words)


def _bars(values: Sequence[Value], top: float) -> str:
    step = WIDTH / len(values)
    return "".join(
        f"M{index * step:.1f} {HEIGHT}V{_height(value, top):.1f}h{step * 0.8:.1f}V{HEIGHT}z"
        for index, value in enumerate(values)
        if value
    )


def _height(value: float, top: float) -> float:
    return HEIGHT - 1 - (HEIGHT - 3) * (value / top if top else 0.0)
