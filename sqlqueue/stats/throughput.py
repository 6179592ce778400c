"""The activity of each minute: adds to it, reads it as rates and series, and deletes what is older than a week."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from django.db.models import F, Sum

from sqlqueue.database.fields import DatabaseNow
from sqlqueue.database.log import Log
from sqlqueue.models import Activity

if TYPE_CHECKING:
    from sqlqueue.stats.survey import Survey

KEPT = timedelta(days=7)
RECENT = timedelta(minutes=5)
FORGOTTEN_AT_ONCE = 1_000
LEAST_ATTEMPTS = 10  # of the last minutes, before it is told how many of them failed

COUNTS = ("acked", "retried", "postponed", "dead", "seconds", "filtered")
ADD = f"INSERT INTO sqlqueue_activity (topic, consumer_group, minute, {', '.join(COUNTS)}) VALUES "
ADDED = {name: f"sqlqueue_activity.{name} + {{new:{name}}}" for name in COUNTS}
BACKLOG = "INSERT INTO sqlqueue_activity (topic, consumer_group, minute, lag) VALUES "
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
    """A group's last minutes: deliveries a second by outcome, how many messages a second its filter has left out, and
    which part of its attempts failed (None: there were few)."""

    acked: float = 0.0
    failed: float = 0.0
    filtered: float = 0.0
    failed_share: float | None = None


NO_RATE = Rate()


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
    values = [value for one in seen.groups for value in (one.topic, one.group, one.lag)]
    rows = ", ".join(["(%s, %s, {minute}, %s)"] * len(seen.groups))
    log.execute(f"{BACKLOG} {rows} {log.dialect.upsert(KEY, {'lag': '{new:lag}'})}", values)


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


def _rate(rows: Sequence[Activity], span: float) -> Rate:
    acked, failed = sum(row.acked for row in rows), sum(row.retried + row.dead for row in rows)
    share = failed / (acked + failed) if acked + failed >= LEAST_ATTEMPTS else None
    return Rate(acked / span, failed / span, sum(row.filtered for row in rows) / span, share)


def minutes(log: Log, since: datetime, **only: str) -> Iterable[tuple[datetime, int, int | None, int]]:
    """Return each minute since then in which something happened, oldest first: the minute, what was acked, the lag
    (None if no process measured it), and what failed; of one topic and group, or the sums over all."""
    rows = Activity.objects.using(log.alias).filter(minute__gte=since, **only).values("minute").order_by("minute")
    sums = rows.annotate(done=Sum("acked"), behind=Sum("lag"), failed=Sum(F("retried") + F("dead")))
    return sums.values_list("minute", "done", "behind", "failed")


def lags(log: Log, since: datetime) -> dict[tuple[str, str], list[tuple[datetime, int]]]:
    """Return the lag of every (topic, group) by minute, oldest first. One statement."""
    rows = Activity.objects.using(log.alias).filter(minute__gte=since, lag__isnull=False).order_by("minute")
    found: dict[tuple[str, str], list[tuple[datetime, int]]] = defaultdict(list)
    for topic, group, minute, lag in rows.values_list("topic", "consumer_group", "minute", "lag"):
        found[topic, group].append((minute, lag))
    return found
