"""Metrics for Prometheus, in the registry that django-prometheus exports. Imported only if prometheus_client is
installed.

Counters and histograms count what the signals announce in this process. Gauges are read from the database when
Prometheus scrapes, at most once in STATS_INTERVAL. All have the label `database`; while there is one log only it is
empty, which Prometheus takes for none.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram

from sqlqueue import signals
from sqlqueue.core import outcomes
from sqlqueue.core.forks import exit_name
from sqlqueue.core.settle_plan import SettledAttempt, count_kinds
from sqlqueue.database import clock
from sqlqueue.database.log import Log, all_logs, home_log
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.monitoring.gauges import StatsCollector

BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)
FINAL = (outcomes.ACKED, outcomes.DEAD)


class BulkHistogram(Histogram):
    """A histogram that observes many values at little more than the cost of one."""

    def observe_many(self, values: Iterable[float]) -> None:
        """Observe each of them."""
        ordered = sorted(values)
        if ordered:
            self._sum.inc(sum(ordered))
        counted = 0
        for bound, bucket in zip(self._upper_bounds, self._buckets):
            reached = bisect_right(ordered, bound, counted)
            if reached > counted:
                bucket.inc(reached - counted)
                counted = reached


PUBLISHED = Counter("sqlqueue_published", "Messages published.", ["database", "topic"])
DELIVERED = Counter(
    "sqlqueue_delivered", "Messages dispatched to handlers, each attempt counted.", ["database", "topic", "group"]
)
SETTLED = Counter("sqlqueue_settled", "Deliveries settled, by outcome.", ["database", "topic", "group", "outcome"])
FILTERED = Counter(
    "sqlqueue_filtered", "Messages acked without their handler, by its filter.", ["database", "topic", "group"]
)
HANDLER = BulkHistogram(
    "sqlqueue_handler_seconds",
    "How long handlers ran: each call once.",
    ["database", "topic", "group"],
    buckets=BUCKETS,
)
LATENCY = BulkHistogram(
    "sqlqueue_latency_seconds",
    "From publish to ack or dead letter.",
    ["database", "topic", "group"],
    buckets=BUCKETS,
)
LEASES = Counter(
    "sqlqueue_lease_changes", "Partitions acquired, released and lost.", ["database", "topic", "group", "change"]
)
COLLECTED = Counter("sqlqueue_collected", "Messages deleted by garbage collection.", ["database", "topic"])
RESULTS_COLLECTED = Counter(
    "sqlqueue_results_collected", "Kept results deleted when their time was over.", ["database"]
)
REFUSED = Counter("sqlqueue_refused", "Scheduled messages that could not enter the log.", ["database"])
MISSED = Counter(
    "sqlqueue_missed_ticks",
    "Times that a periodic schedule was found to have missed ticks.",
    ["database", "topic"],
)
LATENESS = BulkHistogram(
    "sqlqueue_tick_lateness_seconds",
    "How late ticks were published, the oldest at a time.",
    ["database", "topic"],
    buckets=BUCKETS,
)
REFUSED_TICKS = Counter("sqlqueue_refused_ticks", "Times that a periodic schedule could not publish.", ["database"])
RETRIES = Counter(
    "sqlqueue_database_retries", "Work on the database that failed and was run again.", ["database", "fault"]
)
# Counted by the supervisor.
DEATHS = Counter("sqlqueue_process_deaths", "Consumer processes that have died.", ["database", "exit"])
STATS_COLLECTOR = StatsCollector()


series_of_published = cache(PUBLISHED.labels)  # a series is never removed: to look it up takes a lock


def _published(*, topic: str, count: int, database: str, **_: Any) -> None:
    series_of_published(database, topic).inc(count)


def _settled(*, topic: str, group: str, attempts: Sequence[SettledAttempt], database: str, **_: Any) -> None:
    now = clock.seen(Log.of(database) if database else home_log())
    kinds = count_kinds(attempts)
    # The messages of a batch share one call.
    calls = {(attempt.started, attempt.finished) for attempt, _ in attempts if attempt.started and attempt.finished}
    ages: list[float] = []
    if now is not None:
        ages = clock.ages([attempt.message.created for attempt, outcome in attempts if outcome.kind in FINAL], now)
    for kind, count in kinds.items():
        SETTLED.labels(database, topic, group, kind.replace(" ", "_")).inc(count)
    HANDLER.labels(database, topic, group).observe_many([finished - started for started, finished in calls])
    LATENCY.labels(database, topic, group).observe_many(ages)


def _ticked(*, topic: str, count: int, missed: bool, seconds: float, database: str, **_: Any) -> None:
    if missed:
        MISSED.labels(database, topic).inc()
    if count:
        LATENESS.labels(database, topic).observe(seconds)


def _retried(*, error_kind: str, database: str, **_: Any) -> None:
    RETRIES.labels(database, error_kind.lower()).inc()


def _died(*, database: str, **fields: Any) -> None:
    DEATHS.labels(database, exit_name(fields["exit"])).inc()


def _adding(metric: Counter, *labels: str, change: str = "", count: str = "") -> Callable[..., None]:
    """Return a receiver that adds to a metric. labels: the fields that its labels are; change: the value of its last
    label; count: the field that says how many, or has as many elements (default: one)."""

    def add(*, database: str, **fields: Any) -> None:
        many = fields[count] if count else 1
        values = [*(fields[name] for name in labels), *([change] if change else [])]
        metric.labels(database, *values).inc(many if isinstance(many, int) else len(many))

    return add


RECEIVERS = (
    (signals.message_published, _published),
    (signals.deliveries_dispatched, _adding(DELIVERED, "topic", "group", count="count")),
    (signals.deliveries_settled, _settled),
    (signals.messages_filtered, _adding(FILTERED, "topic", "group", count="count")),
    (signals.lease_acquired, _adding(LEASES, "topic", "group", change="acquired", count="partitions")),
    (signals.lease_released, _adding(LEASES, "topic", "group", change="released", count="partitions")),
    (signals.lease_lost, _adding(LEASES, "topic", "group", change="lost")),
    (signals.messages_collected, _adding(COLLECTED, "topic", count="count")),
    (signals.results_collected, _adding(RESULTS_COLLECTED, count="count")),
    (signals.message_refused, _adding(REFUSED)),
    (signals.ticks_published, _ticked),
    (signals.tick_refused, _adding(REFUSED_TICKS)),
    (signals.operation_retried, _retried),
    (signals.process_died, _died),
)
UID = "sqlqueue.metrics"  # of the receivers


def connect(registry: CollectorRegistry = REGISTRY) -> None:
    """Connect to the signals, and register the gauges in the registry of the counters."""
    connect_receivers()
    registry.register(STATS_COLLECTOR)


def connect_receivers() -> None:
    """Connect the receivers that count. The counters that have no other label than the database begin at 0, so that
    `increase()` sees the first event, too."""
    with suppress(ConfigurationError):  # a system check reports it
        for log in all_logs():
            for counter in (RESULTS_COLLECTED, REFUSED, REFUSED_TICKS):
                counter.labels(log.label)
    for signal, receiver in RECEIVERS:
        signal.connect(receiver, weak=False, dispatch_uid=UID)
