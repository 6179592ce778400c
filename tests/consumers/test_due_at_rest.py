"""What waits in a partition with nothing else to do is delivered in time, however seldom all partitions are visited."""

import time
from dataclasses import replace
from typing import Any

import pytest

from sqlqueue import NewMessage, Postpone, Retry, publish, publish_many
from sqlqueue.consumers.engine.subscriber import Subscriber
from sqlqueue.consumers.handlers.inline import InlinePool
from tests.subscribers import consumer

ALL_SELDOM = {"PARTITIONS": 1, "WAKE": False, "LEASE_DURATION": 3600, "BALANCE_INTERVAL": 600.0}


def until_seen(subscriber: Subscriber, seen: list[float], times: int) -> None:
    """Run the loop as the control thread does, until a handler was called so often, for a few seconds at most."""
    ends = time.monotonic() + 6.0
    while len(seen) < times and time.monotonic() < ends:
        time.sleep(min(subscriber.run_once(), 0.5))


@pytest.mark.parametrize("delayed", [Retry, Postpone])
def test_what_waits_until_it_is_due_does_not_wait_for_a_visit_of_all(
    transactional_db: None, settings: Any, delayed: type[Retry] | type[Postpone]
) -> None:
    settings.SQLQUEUE = ALL_SELDOM
    seen: list[float] = []

    def handle(delivery: Any) -> None:
        seen.append(time.monotonic())
        if len(seen) < 3:
            raise delayed(delay=0.2)

    subscriber = Subscriber([consumer("t", handle)], background_tasks=False, pool=InlinePool)
    subscriber.start()
    try:
        publish("t", 1)
        until_seen(subscriber, seen, 3)
    finally:
        subscriber.stop()
        subscriber.close()
    assert len(seen) == 3


def test_a_key_that_waits_for_its_rate_does_not_wait_for_a_visit_of_all(transactional_db: None, settings: Any) -> None:
    settings.SQLQUEUE = ALL_SELDOM
    seen: list[float] = []
    limited = consumer("t", lambda delivery: seen.append(time.monotonic()), ordering="key", rate_limit_per_key="5/s")
    subscriber = Subscriber([replace(limited, declares=True)], background_tasks=False, pool=InlinePool)
    subscriber.start()
    try:
        publish_many("t", [NewMessage(number, key="k") for number in range(8)])
        until_seen(subscriber, seen, 8)
    finally:
        subscriber.stop()
        subscriber.close()
    assert len(seen) == 8
