"""Leases: exclusive, expiring by the database's clock, each change of owner with a greater token."""

import time
from datetime import timedelta

import pytest

from sqlqueue import NewMessage, publish_many
from sqlqueue.leases import heartbeat, release
from sqlqueue.leases.acquire import AcquiredPartition, acquire
from sqlqueue.log.groups import register
from sqlqueue.models import Message, Offset, PartitionLease, SubscriberHeartbeat
from sqlqueue.models.subscriber import AHEAD, HOLDER_LENGTH
from tests.consuming import states
from tests.factories import now
from tests.logs import LOG

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def four(settings) -> None:
    settings.SQLQUEUE = {"PARTITIONS": 4}
    register(LOG, "g", "t")


def take(name: str, *partitions: int, duration: float = 300, horizon: int = 0) -> list[AcquiredPartition]:
    return acquire(LOG, name, "g", "t", partitions, priorities=1, lease_duration=duration, horizon=horizon)


def holders() -> list[str]:
    return list(PartitionLease.objects.order_by("partition").values_list("holder", flat=True))


class TestAcquiring:
    def test_free_ones_are_taken_with_a_token_that_grows(self) -> None:
        assert [(taken.ref.partition, taken.token) for taken in take("a", 0, 1)] == [(0, 1), (1, 1)]
        release.release(LOG, "a", {("g", "t"): [0]})
        assert [(taken.ref.partition, taken.token) for taken in take("b", 0, 1)] == [(0, 2)]
        assert holders() == ["b", "a", "", ""]

    def test_what_another_holds_is_not_taken(self) -> None:
        take("a", 0)
        assert take("b", 0) == []

    def test_what_has_expired_is_taken_and_its_owner_finds_out(self) -> None:
        take("a", 0, 1, duration=0.2)
        time.sleep(0.3)
        (stolen,) = take("b", 0)
        assert stolen.token == 2
        assert release.renew(LOG, "a", 300) == 1
        assert release.held(LOG, "a") == {("g", "t", 1): 1}
        assert release.held(LOG, "b") == {("g", "t", 0): 2}

    def test_an_expired_lease_that_nobody_has_taken_is_still_its_holders(self) -> None:
        take("a", 0, duration=0)
        assert release.renew(LOG, "a", 300) == 1
        assert take("b", 0) == []

    def test_the_token_goes_to_the_offset_row(self) -> None:
        take("a", 0, 1)
        release.release(LOG, "a", {("g", "t"): [0]})
        take("b", 0)
        tokens = dict(Offset.objects.values_list("partition", "fencing_token"))
        assert tokens == {0: 2, 1: 1}

    def test_an_hour_of_difference_on_this_host_changes_nothing(self, monkeypatch) -> None:
        take("a", 0)
        really = time.time
        for hours in (-1, 1):
            monkeypatch.setattr(time, "time", lambda hours=hours: really() + hours * 3600)
            monkeypatch.setattr(time, "time_ns", lambda hours=hours: int((really() + hours * 3600) * 1e9))
            heartbeat.beat(LOG, "a", [("g", "t")], 300)
            assert take("b", 0) == []
            assert release.renew(LOG, "a", 300) == 1
            assert SubscriberHeartbeat.objects.alive().count() == 1


class TestRecovery:
    def test_what_was_dispatched_and_not_settled_is_in_doubt(self) -> None:
        publish_many("t", [NewMessage(number, key="a") for number in range(4)])
        offsets = list(Message.objects.order_by("offset").values_list("offset", flat=True))
        partition = Message.objects.first().partition
        take("a", partition)
        Offset.objects.update(position=offsets[0], offset_acked=offsets[0], claimed_to=offsets[2])
        release.free(LOG, "a")
        (taken,) = take("b", partition, horizon=offsets[3])
        assert [(row.offset, row.retry_count, row.in_flight, row.key) for row in taken.rows] == [
            (offsets[1], 1, 1, "a"),
            (offsets[2], 1, 1, "a"),
        ]
        assert (taken.position, taken.watermark, taken.claimed) == (offsets[2], offsets[0], offsets[2])
        assert states("t", "g") == [(offsets[1], 1, False), (offsets[2], 1, False)]

    def test_the_position_stops_at_the_horizon(self) -> None:
        publish_many("t", [NewMessage(number, key="a") for number in range(4)])
        offsets = list(Message.objects.order_by("offset").values_list("offset", flat=True))
        partition = Message.objects.first().partition
        take("a", partition)
        Offset.objects.update(claimed_to=offsets[3])
        release.free(LOG, "a")
        (taken,) = take("b", partition, horizon=offsets[1])
        assert (taken.position, taken.watermark) == (offsets[1], offsets[0] - 1)
        assert len(taken.rows) == 4


class TestHolding:
    def test_releasing_leaves_what_another_holds(self) -> None:
        take("a", 0)
        take("b", 1)
        release.release(LOG, "a", {("g", "t"): [0, 1, 2]})
        assert holders() == ["", "b", "", ""]

    def test_freeing_the_dead_frees_everything_of_theirs(self) -> None:
        take("a", 0, 1)
        take("b", 2)
        assert release.free(LOG, "a") == 2
        assert holders() == ["", "", "b", ""]


class TestOfATimeBeforeTheClockWasSetBack:
    def of_later(self, ahead: timedelta, *partitions: int) -> None:
        """What the process "a" holds, as it looks when the clock was set back."""
        take("a", *partitions)
        PartitionLease.objects.filter(partition__in=partitions).update(valid_until=now() + ahead)

    def test_one_of_a_process_that_is_gone_ends_a_leases_duration_later_and_the_next_token_is_greater(self) -> None:
        self.of_later(timedelta(hours=2), 0, 1)
        assert release.shorten_stale(LOG, 0.2) == 2
        assert take("b", 0) == []
        time.sleep(0.3)
        assert [(taken.ref.partition, taken.token) for taken in take("b", 0, 1)] == [(0, 2), (1, 2)]

    def test_more_than_one_statement_takes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(release, "SHORTENED_AT_ONCE", 3)
        self.of_later(timedelta(hours=2), 0, 1, 2, 3)
        assert release.shorten_stale(LOG, 300) == 4
        assert release.shorten_stale(LOG, 300) == 0

    def test_a_beat_of_that_time_does_not_keep_it(self) -> None:
        heartbeat.beat(LOG, "a", [("g", "t")], 300)
        SubscriberHeartbeat.objects.update(
            beat_at=now() + timedelta(hours=2), expires_at=now() + timedelta(hours=2, seconds=300)
        )
        self.of_later(timedelta(hours=2), 0)
        assert release.shorten_stale(LOG, 300) == 1

    def test_until_it_ends_its_holder_can_renew_it(self) -> None:
        self.of_later(timedelta(hours=2), 0)
        release.shorten_stale(LOG, 0)
        assert release.renew(LOG, "a", 300) == 1
        assert release.held(LOG, "a") == {("g", "t", 0): 1}
        assert take("b", 0) == []

    def test_one_whose_holder_beats_is_left(self) -> None:
        """It may have a longer LEASE_DURATION."""
        self.of_later(timedelta(hours=2), 0)
        heartbeat.beat(LOG, "a", [("g", "t")], 7200)
        assert release.shorten_stale(LOG, 300) == 0

    def test_one_that_can_be_of_the_present_is_left(self) -> None:
        self.of_later(AHEAD + timedelta(seconds=290), 0)
        assert release.shorten_stale(LOG, 300) == 0
        assert PartitionLease.objects.get(partition=0).valid_until > now() + AHEAD


class TestHeartbeats:
    def test_one_for_each_group_and_topic_renewed_in_place(self) -> None:
        places = [("g", "t"), ("h", "t")]
        heartbeat.beat(LOG, "a", places, 30, "127.0.0.1:1", "waiting")
        heartbeat.beat(LOG, "a", places, 30, "127.0.0.1:2", "busy")
        beats = SubscriberHeartbeat.objects.values_list("consumer_group", "address", "activity")
        assert sorted(beats) == [("g", "127.0.0.1:2", "busy"), ("h", "127.0.0.1:2", "busy")]
        heartbeat.leave(LOG, "a")
        assert not SubscriberHeartbeat.objects.exists()

    def test_long_dead_ones_are_removed(self) -> None:
        heartbeat.beat(LOG, "just now", [("g", "t")], 0)
        heartbeat.beat(LOG, "alive", [("g", "t")], 300)
        time.sleep(0.15)
        heartbeat.remove_dead(LOG, 30)
        assert SubscriberHeartbeat.objects.count() == 2
        heartbeat.remove_dead(LOG, 0.01)
        assert list(SubscriberHeartbeat.objects.values_list("subscriber", flat=True)) == ["alive"]

    def test_no_incarnation_has_anothers_name(self) -> None:
        assert len({heartbeat.subscriber_name() for _ in range(100)}) == 100

    def test_of_a_host_with_a_name_that_is_too_long_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(heartbeat.socket, "gethostname", lambda: "host" * HOLDER_LENGTH)
        monkeypatch.setattr(heartbeat.os, "getpid", lambda: 4_194_304)
        names = [heartbeat.subscriber_name() for _ in range(2)]
        for partition, name in enumerate(names):
            heartbeat.beat(LOG, name, [("g", "t")], 300)
            assert len(take(name, partition)) == 1
            assert release.held(LOG, name) == {("g", "t", partition): 1}
        assert holders() == [*names, "", ""]
        assert SubscriberHeartbeat.objects.alive().count() == 2
