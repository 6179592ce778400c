"""The activity of each minute: adds to it, reads it as rates and series, and deletes what is older than a week."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db.models import Sum

from sqlqueue.database.fields import DatabaseNow
from sqlqueue.database.log import Log
from sqlqueue.models import Activity
from sqlqueue.stats import sampling

if TYPE_CHECKING:
    from sqlqueue.stats.groups import GroupSurvey
    from sqlqueue.stats.survey import Survey

KEPT = timedelta(days=7)
RECENT = timedelta(minutes=5)
FORGOTTEN_AT_ONCE = 1_000
LEAST_MEASURED = 3  # minutes, before the pace of a lag is told
STEADY = 3.0  # times the slower half of the minutes: the most that the faster one falls by
BY_SETTLING = 1.25  # times what was settled: a lag that falls faster does so by something else, as a purge
AGES = 0.1  # seconds a second by which the oldest message gets older at least: it never ages steadily
LEAST_ATTEMPTS = 10  # of the last minutes, before it is told how many of them failed
CHANGED = 2.0  # times the lag that was measured last: above that, something else than its pace has changed it

COUNTS = ("acked", "retried", "postponed", "dead", "seconds", "filtered")
ADD = f"INSERT INTO sqlqueue_activity (topic, consumer_group, minute, {', '.join(COUNTS)}) VALUES "
ADDED = {name: f"sqlqueue_activity.{name} + {{new:{name}}}" for name in COUNTS}
BACKLOG = "INSERT INTO sqlqueue_activity (topic, consumer_group, minute, lag, oldest_age) VALUES "
SET = {"lag": "{new:lag}", "oldest_age": "{new:oldest_age}"}
KEY = "topic, consumer_group, minute"
# Index: (minute).
HAS_BACKLOGS = "SELECT 1 FROM sqlqueue_activity WHERE minute = {minute} AND lag IS NOT NULL LIMIT 1"


class SettledCounts(NamedTuple):
    """Deliveries of a group by outcome since the last record, the handlers' time in seconds, and the messages that its
    filter has left out."""

    topic: str
    group: str
    acked: int
    retried: int
    postponed: int
    dead: int
    seconds: float
    filtered: int = 0


@dataclass(frozen=True, slots=True)
class Rate:
    """A group's last minutes: deliveries a second by outcome, by how many messages a second its lag fell (negative: it
    grew; None: unknown), how many a second its filter has left out, the lag that was measured last, which part of its
    attempts failed (None: there were few), whether its lag grew all the time, and whether its oldest message got older
    all the time while the lag did not fall."""

    acked: float
    failed: float
    falling: float | None
    filtered: float = 0.0
    lag: int = 0
    failed_share: float | None = None
    grows: bool = False
    ages: bool = False


NO_RATE = Rate(0.0, 0.0, None)


def add(log: Log, counts: Sequence[SettledCounts]) -> None:
    """Add counts to the current minute, by the database's clock."""
    row = f"(%s, %s, {{minute}}, {', '.join(['%s'] * len(COUNTS))})"
    upsert = log.dialect.upsert(KEY, ADDED)
    log.execute(f"{ADD} {', '.join([row] * len(counts))} {upsert}", [value for row in counts for value in row])


def has_backlogs(log: Log) -> bool:
    """Tell whether a process has recorded the backlogs of this minute."""
    return log.execute(HAS_BACKLOGS).fetchone() is not None


def record_backlogs(log: Log, seen: Survey) -> None:
    """Record how far behind each group is now."""
    if not seen.groups:
        return
    values = [value for one in seen.groups for value in (one.topic, one.group, one.lag, one.oldest_age or 0.0)]
    rows = ", ".join(["(%s, %s, {minute}, %s, %s)"] * len(seen.groups))
    log.execute(f"{BACKLOG} {rows} {log.dialect.upsert(KEY, SET)}", values)


def forget(log: Log) -> None:
    """Delete what is older than a week, some rows at a time."""
    old = Activity.objects.using(log.alias).filter(minute__lt=DatabaseNow() - KEPT)
    while ids := list(old.order_by("minute").values_list("id", flat=True)[:FORGOTTEN_AT_ONCE]):
        log.execute(log.dialect.delete("sqlqueue_activity", "id", len(ids)), ids)


def rates(log: Log, now: datetime) -> dict[tuple[str, str], Rate]:
    """Return the rates of every (topic, group) that did something in the last five minutes. One statement."""
    since = now - RECENT
    rows = Activity.objects.using(log.alias).filter(minute__gte=since).order_by("minute")
    found: dict[tuple[str, str], list[Activity]] = defaultdict(list)
    for row in rows:
        found[row.topic, row.consumer_group].append(row)
    return {
        group_topic: _rate(some, max((now - max(since, some[0].minute)).total_seconds(), 1.0))
        for group_topic, some in found.items()
    }


def pace(group: GroupSurvey) -> float | None:
    """Return by how many messages a second a group's lag falls, 0 or less if it does not; None if that is unknown, as
    it is of an estimate, of a group that rests, is away or stuck, and after something else than settling changed it."""
    if group.estimated or group.rests or group.away or group.stuck or group.budget_spent:
        return None
    return None if group.lag > CHANGED * max(group.rate.lag, 1) else group.rate.falling


def drained_in(group: GroupSurvey) -> float | None:
    """Return in how many seconds a group's backlog is settled at its pace; None if it does not fall, or is unknown."""
    falling = pace(group)
    return group.lag / falling if group.lag and falling and falling > 0 else None


def _rate(rows: Sequence[Activity], span: float) -> Rate:
    measured = [row for row in rows if row.lag is not None]
    acked, failed = sum(row.acked for row in rows), sum(row.retried + row.dead for row in rows)
    return Rate(
        acked / span,
        failed / span,
        _falling(measured, rows),
        sum(row.filtered for row in rows) / span,
        (measured[-1].lag or 0) if measured else 0,
        failed / (acked + failed) if acked + failed >= LEAST_ATTEMPTS else None,
        _grows([row.lag or 0 for row in measured]),
        _ages(measured),
    )


def _ages(measured: Sequence[Activity]) -> bool:
    """Tell whether the oldest message got older in both halves of the minutes while the lag did not fall in both."""
    ages = [row.oldest_age or 0.0 for row in measured]
    if not _grows(ages) or _grows([-(row.lag or 0) for row in measured]):
        return False
    return ages[-1] - ages[0] > AGES * (measured[-1].minute - measured[0].minute).total_seconds()


def _grows(measured: Sequence[float]) -> bool:
    """Tell whether a number has grown in both halves of the minutes."""
    return len(measured) >= LEAST_MEASURED and measured[0] < measured[len(measured) // 2] < measured[-1]


def _falling(measured: Sequence[Activity], rows: Sequence[Activity]) -> float | None:
    """Return by how many messages a second the lag fell, 0 or less if it never did; None unless it was measured for
    long enough, as a count, and fell steadily by what was settled. measured: the rows that have a lag."""
    if len(measured) < LEAST_MEASURED:
        return None
    if max(row.lag or 0 for row in measured) >= sampling.EXACT:  # estimates, which differ by more than is settled
        return None
    first, middle, last = measured[0], measured[len(measured) // 2], measured[-1]
    halves = [_slope(first, middle), _slope(middle, last)]
    if max(halves) <= 0:
        return _slope(first, last)
    if min(halves) <= 0 or max(halves) > STEADY * min(halves):
        return None
    for falls, start, end in zip(halves, (first, middle), (middle, last)):
        within = [row for row in rows if start.minute <= row.minute <= end.minute]
        settled = sum(row.acked + row.dead + row.filtered for row in within)
        if falls * (end.minute - start.minute).total_seconds() > BY_SETTLING * settled:
            return None
    return _slope(first, last)


def _slope(start: Activity, end: Activity) -> float:
    return ((start.lag or 0) - (end.lag or 0)) / (end.minute - start.minute).total_seconds()


def series(log: Log, topic: str, group: str, since: datetime) -> list[Activity]:
    """Return a group's minutes since then, oldest first; a minute in which nothing happened has no row."""
    return list(
        Activity.objects.using(log.alias)
        .filter(topic=topic, consumer_group=group, minute__gte=since)
        .order_by("minute")
    )


def totals(log: Log, since: datetime) -> list[dict[str, Any]]:
    """Return the sums over all groups, minute by minute, oldest first: acked, retried, dead, and lag (None if no
    process measured it)."""
    rows = Activity.objects.using(log.alias).filter(minute__gte=since).values("minute").order_by("minute")
    return list(rows.annotate(acked=Sum("acked"), retried=Sum("retried"), dead=Sum("dead"), lag=Sum("lag")))


def lags(log: Log, since: datetime) -> dict[tuple[str, str], list[tuple[datetime, int]]]:
    """Return the lag of every (topic, group) by minute, oldest first. One statement."""
    rows = Activity.objects.using(log.alias).filter(minute__gte=since, lag__isnull=False).order_by("minute")
    found: dict[tuple[str, str], list[tuple[datetime, int]]] = defaultdict(list)
    for topic, group, minute, lag in rows.values_list("topic", "consumer_group", "minute", "lag"):
        found[topic, group].append((minute, lag))
    return found
