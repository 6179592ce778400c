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
from sqlqueue.leases.release import Renewal, Renewed
from sqlqueue.log.groups import register
from sqlqueue.models import PartitionLease, SubscriberHeartbeat, Topic
from tests.processes import wait_until

ALIAS, GROUP, TOPIC = "default", "g", "t"
DURATION, NEVER = 0.6, 3_600.0
GONE, DEADLOCK = 2006, 1213  # MySQL's codes: errors of any database are classified by such


class Failing(Renewal):
    """A renewal whose first rounds fail of these errors."""

    def __init__(self, renewal: Renewal, *errors: Error):
        super().__init__(Log.of(ALIAS), renewal.subscriber, renewal.subscriptions, renewal.lease_duration)
        self.errors, self.rounds = list(errors), 0

    def renew(self) -> Renewed:
        self.rounds += 1
        if self.errors:
            raise self.errors.pop(0)
        return super().renew()


@pytest.fixture
def renewal(transactional_db: None) -> Renewal:
    """Of a subscriber that holds every partition of a topic."""
    publish(TOPIC, 1)
    register(Log.of(ALIAS), GROUP, TOPIC)
    name, partitions = heartbeat.subscriber_name(), Topic.objects.get(name=TOPIC).partitions
    acquire(Log.of(ALIAS), name, GROUP, TOPIC, range(partitions), priorities=1, lease_duration=DURATION, horizon=0)
    assert len(release.held(Log.of(ALIAS), name)) == partitions
    return Renewal(Log.of(ALIAS), name, [(GROUP, TOPIC)], DURATION)


@pytest.fixture
def looping() -> Iterator[Callable[..., None]]:
    loops: list[RenewalLoop] = []

    def start(renewal: Renewal, interval: float, reported: list[Error], **more: object) -> None:
        loops.append(RenewalLoop(renewal, interval, reported.append, **more))
        loops[-1].start()

    yield start
    for loop in loops:
        loop.stop()


def alive() -> bool:
    return SubscriberHeartbeat.objects.alive().exists()


def test_it_renews_until_it_is_stopped(renewal: Renewal) -> None:
    renewals: list[Renewed] = []
    loop = RenewalLoop(renewal, 0.05, pytest.fail, renewed=renewals.append)
    loop.start()
    time.sleep(2 * DURATION)
    leases = PartitionLease.objects.filter(holder=renewal.subscriber)
    assert alive()
    assert not acquire(Log.of(ALIAS), "another", GROUP, TOPIC, [0], priorities=1, lease_duration=DURATION, horizon=0)
    loop.stop()
    count, until = len(renewals), list(leases.order_by("partition").values_list("valid_until", flat=True))
    assert count > 1
    assert {one.leases for one in renewals} == {leases.count()}
    time.sleep(2 * DURATION)
    assert (len(renewals), list(leases.order_by("partition").values_list("valid_until", flat=True))) == (count, until)
    assert not alive()


def test_it_begins_with_a_beat(renewal: Renewal, looping: Callable[..., None]) -> None:
    looping(renewal, NEVER, [])
    assert alive()


def test_it_reports_every_error_and_renews_at_the_next_interval(renewal: Renewal, looping: Callable[..., None]) -> None:
    errors = [OperationalError(GONE, "gone away"), ProgrammingError(1146, "no such table")]
    failing, reported = Failing(renewal, *errors), list[Error]()
    looping(failing, 0.05, reported)
    wait_until(lambda: failing.rounds > 3)
    assert reported == errors
    assert alive()


def test_it_goes_on_when_a_lost_connection_cannot_be_closed(
    renewal: Renewal, looping: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    errors, reported, close = [OperationalError(GONE, "gone away")], list[Error](), retries.close_lost_connections

    def fail_once() -> bool:
        if errors:
            raise errors.pop()
        return close()

    monkeypatch.setattr(retries, "close_lost_connections", fail_once)
    looping(renewal, 0.05, reported)
    wait_until(lambda: len(reported) == 1)
    time.sleep(2 * DURATION)
    assert alive()
