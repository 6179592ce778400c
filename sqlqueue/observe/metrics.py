"""Metrics for Prometheus, in the registry that django-prometheus exports. Imported only where prometheus_client is.

What happens is counted where it happens, from the facts that the signals announce. How things stand is asked of the
database when somebody scrapes, once in SURVEY_INTERVAL.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram

from sqlqueue import signals
from sqlqueue.conf import settings
from sqlqueue.core import outcomes
from sqlqueue.core.plan import Hand
from sqlqueue.database import clock
from sqlqueue.observe.gauges import StandingCollector

BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)
FINAL = (outcomes.ACKED, outcomes.DEAD)


class BulkHistogram(Histogram):
    """A histogram that observes many values for little more than the price of one."""

    def observe_many(self, values: Iterable[float]) -> None:
        """Observe each of them."""
        counts: dict[int, int] = {}
        total = 0.0
        bounds = self._upper_bounds
        for value in values:
            total += value
            index = bisect_left(bounds, value)
            counts[index] = counts.get(index, 0) + 1
        if counts:
            self._sum.inc(total)
            for index, count in counts.items():
                self._buckets[index].inc(count)


PUBLISHED = Counter("sqlqueue_published", "Messages published.", ["topic"])
DELIVERED = Counter("sqlqueue_delivered", "Messages handed out to handlers, each attempt counted.", ["topic", "group"])
SETTLED = Counter("sqlqueue_settled", "Deliveries settled, by what became of them.", ["topic", "group", "outcome"])
HANDLER = BulkHistogram(
    "sqlqueue_handler_seconds", "How long handlers ran: each call once.", ["topic", "group"], buckets=BUCKETS
)
LATENCY = BulkHistogram(
    "sqlqueue_latency_seconds", "From publish to ack or dead letter.", ["topic", "group"], buckets=BUCKETS
)
LEASES = Counter("sqlqueue_lease_changes", "Partitions acquired, released and lost.", ["topic", "group", "change"])
COLLECTED = Counter("sqlqueue_collected", "Messages deleted by garbage collection.", ["topic"])
REFUSED = Counter("sqlqueue_refused", "Scheduled messages that could not enter the log.")
RETRIES = Counter("sqlqueue_database_retries", "Work on the database that failed and was run again.", ["fault"])
STANDING = StandingCollector()


def _published(*, topic: str, count: int, **_: Any) -> None:
    PUBLISHED.labels(topic).inc(count)


def _handed_out(*, topic: str, group: str, count: int, **_: Any) -> None:
    DELIVERED.labels(topic, group).inc(count)


def _settled(*, topic: str, group: str, hands: list[Hand], **_: Any) -> None:
    now = clock.seen(settings.DATABASE)
    kinds: Tally[str] = Tally()
    calls: set[tuple[float, float]] = set()  # the messages of a batch have one call in common
    ages: list[float] = []
    for hand in hands:
        kind = hand.outcome.kind if hand.outcome is not None else outcomes.LOST
        kinds[kind] += 1
        if hand.started and hand.finished:
            calls.add((hand.started, hand.finished))
        if kind in FINAL and now is not None:
            ages.append(max(0.0, now - clock.seconds(hand.message.created)))
    for kind, count in kinds.items():
        SETTLED.labels(topic, group, kind.replace(" ", "_")).inc(count)
    HANDLER.labels(topic, group).observe_many(finished - started for started, finished in calls)
    LATENCY.labels(topic, group).observe_many(ages)


def _acquired(*, topic: str, group: str, partitions: list[int], **_: Any) -> None:
    LEASES.labels(topic, group, "acquired").inc(len(partitions))


def _released(*, topic: str, group: str, partitions: list[int], **_: Any) -> None:
    LEASES.labels(topic, group, "released").inc(len(partitions))


def _lost(*, topic: str, group: str, **_: Any) -> None:
    LEASES.labels(topic, group, "lost").inc()


def _collected(*, topic: str, count: int, **_: Any) -> None:
    COLLECTED.labels(topic).inc(count)


def _refused(**_: Any) -> None:
    REFUSED.inc()


def _failed(*, fault: str, **_: Any) -> None:
    RETRIES.labels(fault.lower()).inc()


RECEIVERS = (
    (signals.message_published, _published),
    (signals.handed_out, _handed_out),
    (signals.settled_together, _settled),
    (signals.lease_acquired, _acquired),
    (signals.lease_released, _released),
    (signals.lease_lost, _lost),
    (signals.messages_collected, _collected),
    (signals.message_refused, _refused),
    (signals.verb_failed, _failed),
)


def connect(registry: CollectorRegistry = REGISTRY) -> None:
    """Subscribe to the signals, and offer the gauges to the registry that the counters are in."""
    connect_receivers()
    registry.register(STANDING)


def connect_receivers() -> None:
    """Count from now on."""
    for signal, receiver in RECEIVERS:
        signal.connect(receiver, weak=False, dispatch_uid=uid(receiver))


def uid(receiver: Callable[..., None]) -> str:
    """Return by what name a receiver is connected."""
    return f"sqlqueue.metrics.{receiver.__name__}"
