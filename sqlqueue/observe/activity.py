"""The minutes' figures: how they are added up, read as series, and forgotten."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db.models import Sum

from sqlqueue.database.dialects import dialect, execute
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.models import Activity

if TYPE_CHECKING:
    from sqlqueue.observe.survey import Survey

KEPT = timedelta(days=7)
RECENT = timedelta(minutes=5)
FORGOTTEN_AT_ONCE = 1_000

COUNTS = ("acked", "retried", "postponed", "dead", "seconds")
ADD = f"INSERT INTO sqlqueue_activity (topic, consumer_group, minute, {', '.join(COUNTS)}) VALUES "
ADDED = {name: f"sqlqueue_activity.{name} + {{new:{name}}}" for name in COUNTS}
BACKLOG = "INSERT INTO sqlqueue_activity (topic, consumer_group, minute, lag, oldest_age) VALUES "
SET = {"lag": "{new:lag}", "oldest_age": "{new:oldest_age}"}
KEY = "topic, consumer_group, minute"
# Index: (minute).
LOOKED_AT = "SELECT 1 FROM sqlqueue_activity WHERE minute = {minute} AND lag IS NOT NULL LIMIT 1"


class Figures(NamedTuple):
    """What was settled of a group since the last time: deliveries by outcome, and the handlers' time in seconds."""

    topic: str
    group: str
    acked: int
    retried: int
    postponed: int
    dead: int
    seconds: float


class Rate(NamedTuple):
    """A group's last minutes: deliveries a second by outcome, and by how many messages a second its lag fell."""

    acked: float
    failed: float
    falling: float | None


def add(alias: str, figures: Sequence[Figures]) -> None:
    """Add to the present minute, by the database's clock."""
    row = "(%s, %s, {minute}, %s, %s, %s, %s, %s)"
    upsert = dialect(alias).upsert(KEY, ADDED)
    execute(alias, f"{ADD} {', '.join([row] * len(figures))} {upsert}", [value for row in figures for value in row])


def looked_at(alias: str) -> bool:
    """Tell whether somebody has noted the backlogs of this minute."""
    return execute(alias, LOOKED_AT).fetchone() is not None


def note_backlogs(alias: str, seen: Survey) -> None:
    """Note how far behind each group is now."""
    if not seen.groups:
        return
    values = [value for one in seen.groups for value in (one.topic, one.group, one.lag, one.oldest_age or 0.0)]
    rows = ", ".join(["(%s, %s, {minute}, %s, %s)"] * len(seen.groups))
    execute(alias, f"{BACKLOG} {rows} {dialect(alias).upsert(KEY, SET)}", values)


def forget(alias: str) -> None:
    """Delete what is older than a week, some rows at a time."""
    old = Activity.objects.using(alias).filter(minute__lt=DatabaseNow() - KEPT)
    while ids := list(old.order_by("minute").values_list("id", flat=True)[:FORGOTTEN_AT_ONCE]):
        execute(alias, dialect(alias).delete("sqlqueue_activity", "id", len(ids)), ids)


def rates(alias: str, now: datetime) -> dict[tuple[str, str], Rate]:
    """Return the rates of every (topic, group) that did something in the last five minutes. One statement."""
    since = now - RECENT
    rows = Activity.objects.using(alias).filter(minute__gte=since).order_by("minute")
    found: dict[tuple[str, str], list[Activity]] = defaultdict(list)
    for row in rows:
        found[row.topic, row.consumer_group].append(row)
    return {place: _rate(some, (now - max(since, some[0].minute)).total_seconds()) for place, some in found.items()}


def _rate(rows: Sequence[Activity], seconds: float) -> Rate:
    span = max(seconds, 1.0)
    looks = [row for row in rows if row.lag is not None]
    falling = None
    if len(looks) > 1:
        first, last = looks[0], looks[-1]
        falling = ((first.lag or 0) - (last.lag or 0)) / (last.minute - first.minute).total_seconds()
    failed = sum(row.retried + row.dead for row in rows)
    return Rate(sum(row.acked for row in rows) / span, failed / span, falling)


def series(alias: str, topic: str, group: str, since: datetime) -> list[Activity]:
    """Return a group's minutes since then, oldest first; a minute in which nothing happened has no row."""
    return list(
        Activity.objects.using(alias).filter(topic=topic, consumer_group=group, minute__gte=since).order_by("minute")
    )


def totals(alias: str, since: datetime) -> list[dict[str, Any]]:
    """Return what all groups did together, minute by minute, oldest first: acked, retried, dead, and their lag (None if
    nobody looked)."""
    rows = Activity.objects.using(alias).filter(minute__gte=since).values("minute").order_by("minute")
    return list(rows.annotate(acked=Sum("acked"), retried=Sum("retried"), dead=Sum("dead"), lag=Sum("lag")))


def lags(alias: str, since: datetime) -> dict[tuple[str, str], list[tuple[datetime, int]]]:
    """Return how the lag of every (topic, group) went, oldest first. One statement."""
    rows = Activity.objects.using(alias).filter(minute__gte=since, lag__isnull=False).order_by("minute")
    found: dict[tuple[str, str], list[tuple[datetime, int]]] = defaultdict(list)
    for topic, group, minute, lag in rows.values_list("topic", "consumer_group", "minute", "lag"):
        found[topic, group].append((minute, lag))
    return found
