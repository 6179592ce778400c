"""Heartbeats of processes that are gone, and beats of a clock that has jumped since: they count for nothing."""

from datetime import timedelta

import pytest

from sqlqueue import NewMessage, publish_many
from sqlqueue.database.log import Log
from sqlqueue.leases import heartbeat
from sqlqueue.leases.assignment import Balancer, Holding
from sqlqueue.log.groups import register
from sqlqueue.models import PartitionLease, SubscriberHeartbeat
from sqlqueue.monitoring.responses import excesses
from sqlqueue.stats.survey import survey
from tests import subscribers
from tests.consuming import QUICK
from tests.factories import SubscriberHeartbeatFactory, now
from tests.processes import wait_until
from tests.progress import keys_of_partitions, wait_until_settled
from tests.subscribers import Handled, RunningSubscriber

pytestmark = pytest.mark.django_db(transaction=True)

ALIAS, LEASE = "default", 1.0
OPTIONS = {**QUICK, "LEASE_DURATION": LEASE, "HEARTBEAT_INTERVAL": 0.3, "BALANCE_INTERVAL": 0.05}
# When a process that is gone beat for the last time, by the clock as it was then.
GONE = {"long ago": -timedelta(hours=2), "before the clock was set back": timedelta(hours=2)}


@pytest.fixture(autouse=True)
def quick(settings) -> None:
    settings.SQLQUEUE = OPTIONS


@pytest.fixture(params=GONE.values(), ids=GONE.keys())
def phantom(request: pytest.FixtureRequest) -> SubscriberHeartbeat:
    """The heartbeat of a process that is gone, which had something to say."""
    register(Log.of(ALIAS), "g", "t")
    beat_at = now() + request.param
    return SubscriberHeartbeatFactory(
        subscriber="phantom",
        beat_at=beat_at,
        expires_at=beat_at + timedelta(seconds=30),
        failing="scheduler",
        server="another:3306",
        horizon=10**9,
    )


def limits() -> list[str]:
    """The limits of health that are passed."""
    return [excess.limit for excess in excesses(survey(Log.of(ALIAS)))]


class TestOfAProcessThatIsGone:
    def test_it_has_no_share(self, phantom: SubscriberHeartbeat) -> None:
        heartbeat.beat(Log.of(ALIAS), "alive", [("g", "t")], 30)
        balancer = Balancer(Log.of(ALIAS), "alive", orphan_timeout=30.0)
        plan = balancer.compare({("g", "t"): Holding(4, set())}, 0.0)["g", "t"]
        assert len(plan.take) == 4

    def test_it_makes_no_excess(self, phantom: SubscriberHeartbeat) -> None:
        heartbeat.beat(Log.of(ALIAS), "alive", [("g", "t")], 30)
        balancer = Balancer(Log.of(ALIAS), "alive", orphan_timeout=30.0)
        assert balancer.compare({("g", "t"): Holding(4, {0, 1, 2, 3})}, 0.0)["g", "t"].give_up == []

    def test_health_misses_a_consumer_and_believes_nothing_that_it_said(
        self, phantom: SubscriberHeartbeat, settings
    ) -> None:
        settings.SQLQUEUE = {**OPTIONS, "HEALTH": {"no_subscriber": True}}
        seen = survey(Log.of(ALIAS))
        assert (seen.subscribers, seen.failing, seen.servers, seen.horizon_lag) == (0, (), (), 0)
        assert seen.group("t", "g").subscribers == 0
        assert limits() == ["no_subscriber"]
        heartbeat.beat(Log.of(ALIAS), "alive", [("g", "t")], 30)
        assert limits() == []

    def test_it_is_removed(self, phantom: SubscriberHeartbeat) -> None:
        heartbeat.beat(Log.of(ALIAS), "alive", [("g", "t")], 30)
        heartbeat.remove_dead(Log.of(ALIAS), 30)
        assert [beat.subscriber for beat in SubscriberHeartbeat.objects.all()] == ["alive"]


def test_a_beat_of_a_moment_ahead_counts(settings) -> None:
    """A clock that was set right by a second leaves no group without its consumers until they beat again."""
    settings.SQLQUEUE = {**OPTIONS, "HEALTH": {"no_subscriber": True}}
    register(Log.of(ALIAS), "g", "t")
    SubscriberHeartbeatFactory(beat_at=now() + timedelta(seconds=2))
    assert limits() == []
    heartbeat.remove_dead(Log.of(ALIAS), 30)
    assert SubscriberHeartbeat.objects.exists()


def test_the_partitions_of_a_process_that_was_gone_before_the_clock_was_set_back_are_read(settings) -> None:
    settings.SQLQUEUE = {**OPTIONS, "COLLECT_INTERVAL": 0.2}
    handled = Handled()
    register(Log.of(ALIAS), "g", "t")
    PartitionLease.objects.update(holder="phantom", fencing_token=7, valid_until=now() + timedelta(hours=2))
    publish_many("t", [NewMessage(n, key=key) for n, key in enumerate(keys_of_partitions(4))])
    with RunningSubscriber(subscribers.consumer("t", handled, group="g"), name="one") as one:
        wait_until(lambda: len(one.holding()) == 4)
        wait_until_settled("t", "g")
    assert len(handled.counts) == 4
    assert set(PartitionLease.objects.values_list("fencing_token", flat=True)) == {8}


@pytest.mark.parametrize("jump", [timedelta(hours=-2), timedelta(hours=2)], ids=["back", "ahead"])
def test_processes_that_live_through_a_jump_of_the_clock_share_as_before(settings, jump: timedelta) -> None:
    """As the tables look right after it: every beat is from another time."""
    settings.SQLQUEUE = {**OPTIONS, "HEALTH": {"no_subscriber": True}}
    handled = Handled()
    ours = [RunningSubscriber(subscribers.consumer("t", handled, group="g"), name=name) for name in ("one", "two")]
    with ours[0], ours[1]:
        wait_until(lambda: [len(each.holding()) for each in ours] == [2, 2])
        for beat in SubscriberHeartbeat.objects.all():
            beat.beat_at, beat.expires_at = beat.beat_at - jump, beat.expires_at - jump
            beat.save(update_fields=["beat_at", "expires_at"])
        for lease in PartitionLease.objects.exclude(holder=""):
            PartitionLease.objects.filter(pk=lease.pk).update(valid_until=lease.valid_until - jump)
        publish_many("t", [NewMessage(n, key=key, id=f"{key}-{n}") for n in range(5) for key in keys_of_partitions(4)])
        wait_until_settled("t", "g")
        wait_until(lambda: SubscriberHeartbeat.objects.alive().count() == 2)
        wait_until(lambda: [len(each.holding()) for each in ours] == [2, 2])
        wait_until(lambda: limits() == [])
    assert len(handled.counts) == 20
