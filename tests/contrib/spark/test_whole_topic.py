"""The loop that keeps a heartbeat and leases alive, and what it does about the database's errors."""

import time
from collections.abc import Callable, Iterator

import pytest
from django.db import Error, OperationalError, ProgrammingError

from sqlqueue import publish
from sqlqueue.contrib.spark.whole_topic import RenewalLoop
from sqlqueue.database import retries
from sqlqueue.database.log import Log
from sqlqueue.leases import heartbeat, release
from sqlqueue.leases.acquire import acquire
from sqlqueue.log.groups import register
from sqlqueue.models import PartitionLease, SubscriberHeartbeat, Topic
from tests.processes import wait_until

ALIAS, GROUP, TOPIC = "default", "g", "t"
DURATION, NEVER = 0.6, 3_600.0
GONE = 2006  # MySQL's code: errors of any database are classified by such


@pytest.fixture
def subscriber(transactional_db: None) -> str:
    """The name of one that holds every partition of a topic."""
    publish(TOPIC, 1)
    register(Log.of(ALIAS), GROUP, TOPIC)
    name, partitions = heartbeat.subscriber_name(), Topic.objects.get(name=TOPIC).partitions
    acquire(Log.of(ALIAS), name, GROUP, TOPIC, range(partitions), priorities=1, lease_duration=DURATION, horizon=0)
    assert len(release.held(Log.of(ALIAS), name)) == partitions
    return name


@pytest.fixture
def looping() -> Iterator[Callable[..., None]]:
    loops: list[RenewalLoop] = []

    def start(subscriber: str, interval: float, reported: list[Error], **more: object) -> None:
        of = [(GROUP, TOPIC)]
        loops.append(RenewalLoop(Log.of(ALIAS), subscriber, of, interval, DURATION, reported.append, **more))
        loops[-1].start()

    yield start
    for loop in loops:
        loop.stop()


def alive() -> bool:
    return SubscriberHeartbeat.objects.alive().exists()


def test_it_renews_until_it_is_stopped(subscriber: str) -> None:
    renewals: list[int] = []
    of = [(GROUP, TOPIC)]
    loop = RenewalLoop(Log.of(ALIAS), subscriber, of, 0.05, DURATION, pytest.fail, renewed=renewals.append)
    loop.start()
    time.sleep(2 * DURATION)
    leases = PartitionLease.objects.filter(holder=subscriber)
    assert alive()
    assert not acquire(Log.of(ALIAS), "another", GROUP, TOPIC, [0], priorities=1, lease_duration=DURATION, horizon=0)
    loop.stop()
    count, until = len(renewals), list(leases.order_by("partition").values_list("valid_until", flat=True))
    assert count > 1
    assert set(renewals) == {leases.count()}
    time.sleep(2 * DURATION)
    assert (len(renewals), list(leases.order_by("partition").values_list("valid_until", flat=True))) == (count, until)
    assert not alive()


def test_it_begins_with_a_beat(subscriber: str, looping: Callable[..., None]) -> None:
    looping(subscriber, NEVER, [])
    assert alive()


def test_it_reports_every_error_and_renews_at_the_next_interval(
    subscriber: str, looping: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [OperationalError(GONE, "gone away"), ProgrammingError(1146, "no such table")]
    left, reported, close = errors.copy(), list[Error](), retries.close_lost_connections

    def fail_first() -> bool:
        if left:
            raise left.pop(0)
        return close()

    monkeypatch.setattr(retries, "close_lost_connections", fail_first)
    looping(subscriber, 0.05, reported)
    wait_until(lambda: len(reported) == 2)
    time.sleep(2 * DURATION)
    assert reported == errors
    assert alive()
