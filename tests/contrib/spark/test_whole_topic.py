"""The loop that keeps a heartbeat and leases alive, and what it does about the database's errors."""

import time
from collections.abc import Callable, Iterator

import pytest
from django.db import Error, IntegrityError, OperationalError, ProgrammingError

from sqlqueue import publish
from sqlqueue.contrib.spark.whole_topic import OnError, RenewalLoop, insist, skip
from sqlqueue.database import retries
from sqlqueue.database.log import Log
from sqlqueue.leases import heartbeat, release
from sqlqueue.leases.acquire import acquire
from sqlqueue.leases.renewal import Renewal, Renewed
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
def looping() -> Iterator[Callable[..., RenewalLoop]]:
    loops: list[RenewalLoop] = []

    def start(renewal: Renewal, interval: float, on_error: OnError = insist, **more: object) -> RenewalLoop:
        loops.append(RenewalLoop(renewal, interval, on_error, **more))
        return loops[-1]

    yield start
    for loop in loops:
        loop.stop()


def alive() -> bool:
    return SubscriberHeartbeat.objects.alive().exists()


def test_it_renews_until_it_is_stopped(renewal: Renewal, looping: Callable[..., RenewalLoop]) -> None:
    renewals: list[Renewed] = []
    loop = looping(renewal, 0.05, renewed=renewals.append)
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


@pytest.mark.parametrize("at_once", [True, False])
def test_it_begins_with_a_renewal_or_with_an_interval(
    renewal: Renewal, looping: Callable[..., RenewalLoop], at_once: bool
) -> None:
    loop = looping(renewal, NEVER)
    loop.start(at_once=at_once)
    if at_once:
        wait_until(alive)
    else:
        time.sleep(0.2)
        assert not alive()


def test_one_that_insists_gets_through_what_passes_within_one_round(
    renewal: Renewal, looping: Callable[..., RenewalLoop]
) -> None:
    failing = Failing(renewal, OperationalError(GONE, "gone away"), OperationalError(DEADLOCK, "a deadlock"))
    looping(failing, NEVER, insist).start()
    wait_until(alive)
    assert failing.rounds == 3


def test_one_that_insists_ends_when_it_is_stopped_or_at_an_error_for_good(renewal: Renewal) -> None:
    assert insist(Failing(renewal, *[OperationalError(GONE, "gone away")] * 2), lambda: True) is None
    with pytest.raises(IntegrityError):
        insist(Failing(renewal, IntegrityError(1062, "duplicate")), lambda: False)


def test_one_that_skips_reports_every_error_and_renews_at_the_next_interval(
    renewal: Renewal, looping: Callable[..., RenewalLoop]
) -> None:
    errors = [OperationalError(GONE, "gone away"), ProgrammingError(1146, "no such table")]
    failing, reported = Failing(renewal, *errors), list[Error]()
    looping(failing, NEVER, skip(reported.append)).start()
    wait_until(lambda: reported == errors[:1])
    time.sleep(0.2)
    assert failing.rounds == 1, "it does not try again before its next interval"
    assert not alive()
    looping(failing, 0.05, skip(reported.append)).start()
    wait_until(alive)
    assert reported == errors


def test_one_that_skips_goes_on_when_a_lost_connection_cannot_be_closed(
    renewal: Renewal, looping: Callable[..., RenewalLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    errors, reported, close = [OperationalError(GONE, "gone away")], list[Error](), retries.close_lost_connections

    def fail_once() -> bool:
        if errors:
            raise errors.pop()
        return close()

    monkeypatch.setattr(retries, "close_lost_connections", fail_once)
    looping(renewal, 0.05, skip(reported.append)).start()
    wait_until(alive)
    assert len(reported) == 1
