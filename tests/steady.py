"""Subscribers whose statements can be counted: one thread, a clock that stands still, and no background tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from django.db import connection

from sqlqueue.consumers.declare.registry import build
from sqlqueue.consumers.engine.subscriber import Subscriber
from sqlqueue.consumers.handlers.inline import InlinePool
from sqlqueue.consumers.handlers.pools import Pool
from sqlqueue.models import Message, Offset
from tests.counting import Counter

SETTINGS = {"PARTITIONS": 1, "WAKE": False, "LEASE_DURATION": 3600, "BALANCE_INTERVAL": 1800}


class Steady:
    """Starts such subscribers of a topic, "t" if none is named. The fixture `steady` is one; it ends them."""

    def __init__(self) -> None:
        self._started: list[Subscriber] = []

    def start(
        self,
        handler: Callable[[Any], object],
        groups: Sequence[str] = "g",
        *,
        topic: str = "t",
        pool: Callable[..., Pool] = InlinePool,
        between: Callable[[], object] = lambda: None,
        **options: Any,
    ) -> Subscriber:
        """Return a subscriber that has started, and has settled what is in the log. groups: of "ab" each letter is one;
        between: as in `settle`."""
        consumers = [replace(build(topic, {"group": group, **options}), handler=handler) for group in groups]
        subscriber = Subscriber(consumers, background_tasks=False, pool=pool)
        now = time.monotonic()
        subscriber.clock = lambda: now  # stands still: nothing is done because time has passed
        subscriber.start()
        self._started.append(subscriber)
        settle(subscriber, Counter(), between)
        return subscriber

    def end(self) -> None:
        """End all subscribers."""
        for subscriber in self._started:
            subscriber.stop(timeout=0.0)
            subscriber.close()


def settle(subscriber: Subscriber, counter: Counter, between: Callable[[], object] = lambda: None) -> None:
    """Run until everything that is in the log is settled or waits; only what the subscriber does is counted. between:
    is called after each iteration."""
    topics = {subscription.consumer.topic for subscription in subscriber.subscriptions}
    last = {
        (one["partition"], one["priority"]): one["offset"]
        for one in Message.objects.filter(topic__in=topics).order_by("offset").values("partition", "priority", "offset")
    }
    for _ in range(1000):
        with connection.execute_wrapper(counter):
            subscriber.run_once()
        between()
        rows = Offset.objects.filter(topic__in=topics).values_list("partition", "priority", "position")
        if all(position >= last.get((partition, priority), 0) for partition, priority, position in rows):
            return
    raise AssertionError("it is never settled")
