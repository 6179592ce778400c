"""Groups are apart: what one does, or does not, changes nothing for the other."""

from collections import Counter

import pytest

from sqlqueue import NewMessage, Reject, Retry, publish, publish_many
from sqlqueue.log.groups import register, remove
from sqlqueue.models import ConsumerGroup, DeliveryState, Message, Offset, PartitionLease, Topic
from sqlqueue.operations.move import move
from tests.consuming import QUICK, Consuming, offset_row, states
from tests.logs import LOG
from tests.processes import wait_until


def test_every_group_gets_every_message(consuming: Consuming) -> None:
    seen: Counter[str] = Counter()
    for group in ("one", "two", "three"):
        consuming.consumer("t", lambda delivery: seen.update([delivery.group]), group=group)
    publish_many("t", range(50))
    consuming.drain()
    assert seen == {"one": 50, "two": 50, "three": 50}


def test_one_groups_failures_and_dead_letters_change_nothing_for_the_other(consuming: Consuming, settings) -> None:
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1}
    good: list[int] = []

    @consuming.consumer("t", group="bad")
    def fail(delivery) -> None:
        if delivery.payload % 3 == 0:
            raise Reject("no")
        raise Retry(delay=60)

    consuming.consumer("t", lambda delivery: good.append(delivery.payload), group="good")
    publish_many("t", [NewMessage(number, key=f"k{number}") for number in range(30)])
    last = Message.objects.filter(topic="t").order_by("-offset").values_list("offset", flat=True)[0]
    consuming.drain()
    assert sorted(good) == list(range(30))
    assert states("t", "good") == []
    assert offset_row("t", "good").offset_acked >= last
    assert offset_row("t", "bad").offset_acked < last
    assert Message.objects.dead_letters("good").count() == 0
    assert Message.objects.dead_letters("bad").count() == 10


def test_one_groups_absence_changes_nothing_for_the_other(consuming: Consuming) -> None:
    seen: list[tuple[str, int]] = []
    for group in ("here", "away"):
        consuming.consumer("t", lambda delivery: seen.append((delivery.group, delivery.payload)), group=group)
    publish("t", 1)
    consuming.drain("here")
    publish("t", 2)
    consuming.drain("here")
    assert sorted(seen) == [("here", 1), ("here", 2)]
    consuming.drain("away")
    assert sorted(seen) == [("away", 1), ("away", 2), ("here", 1), ("here", 2)]


def test_a_message_for_one_group_is_no_others(consuming: Consuming, settings) -> None:
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1}
    seen: list[tuple[str, str]] = []
    for group in ("one", "two"):
        consuming.consumer("t", lambda delivery: seen.append((delivery.group, delivery.payload)), group=group)
    publish("t", "for all", key="a")
    publish("t", "for two", key="a", group="two")
    last = publish("t", "for all again", key="a").offset
    consuming.drain()
    assert [payload for group, payload in seen if group == "one"] == ["for all", "for all again"]
    assert [payload for group, payload in seen if group == "two"] == ["for all", "for two", "for all again"]
    assert offset_row("t", "one").offset_acked == last


class TestStart:
    def test_earliest_gets_what_the_log_holds(self, consuming: Consuming) -> None:
        seen: list[int] = []
        publish("t", 1)
        consuming.consumer("t", lambda delivery: seen.append(delivery.payload))
        consuming.drain()
        assert seen == [1]

    def test_latest_gets_only_what_comes_after_its_registration(self, consuming: Consuming) -> None:
        seen: list[int] = []
        publish_many("t", [NewMessage(0, key=str(number)) for number in range(20)])
        consuming.consumer("t", lambda delivery: seen.append(delivery.payload), start="latest")
        consuming.drain()
        assert seen == []
        publish_many("t", [NewMessage(1, key=str(number)) for number in range(20)])
        consuming.drain()
        assert seen == [1] * 20

    def test_it_is_fixed_at_registration(self, consuming: Consuming) -> None:
        """Also for partitions without an owner so far when messages come."""
        seen: list[int] = []
        publish("t", "before")
        register(LOG, "default", "t", "latest")
        publish_many("t", [NewMessage(1, key=str(number)) for number in range(20)])
        assert not register(LOG, "default", "t", "earliest")
        consuming.consumer("t", lambda delivery: seen.append(delivery.payload), start="latest")
        consuming.drain()
        assert seen == [1] * 20

    def test_it_is_no_matter_for_a_group_that_is_registered(self, consuming: Consuming) -> None:
        seen: list[int] = []
        register(LOG, "default", "t", "earliest")
        publish("t", 1)
        consuming.consumer("t", lambda delivery: seen.append(delivery.payload), start="latest")
        consuming.drain()
        assert seen == [1]


class TestRemoval:
    def test_nothing_of_it_stays_but_its_tokens(self, consuming: Consuming) -> None:
        @consuming.consumer("t")
        def fail(delivery) -> None:
            raise Retry(delay=60)

        publish("t", 1)
        consuming.drain()
        before = dict(PartitionLease.objects.values_list("partition", "fencing_token"))
        assert remove(LOG, "default", "t")
        assert not remove(LOG, "default", "t")
        assert not ConsumerGroup.objects.exists()
        assert not Offset.objects.exists()
        assert not DeliveryState.objects.exists()
        after = dict(PartitionLease.objects.values_list("partition", "fencing_token"))
        assert all(after[partition] > token for partition, token in before.items())

    def test_a_group_of_the_same_name_begins_anew_with_greater_tokens(self, consuming: Consuming) -> None:
        seen: list[int] = []
        consuming.consumer("t", lambda delivery: seen.append(delivery.payload))
        publish("t", 1)
        consuming.drain()
        before = dict(Offset.objects.values_list("partition", "fencing_token"))
        remove(LOG, "default", "t")
        consuming.drain()
        assert seen == [1, 1]
        after = dict(Offset.objects.values_list("partition", "fencing_token"))
        assert all(after[partition] > token for partition, token in before.items())

    def test_its_owner_finds_out_and_goes_on_with_the_rest(self, consuming: Consuming, settings) -> None:
        settings.SQLQUEUE = {**QUICK, "HEARTBEAT_INTERVAL": 0.2}
        seen: list[tuple[str, int]] = []
        for topic in ("t", "other"):
            consuming.consumer(topic, lambda delivery: seen.append((delivery.topic, delivery.payload)))
        host = consuming.start()
        publish("t", 1, key="a")
        wait_until(lambda: seen == [("t", 1)])
        remove(LOG, "default", "t")
        publish("t", 2, key="a")
        wait_until(lambda: not host.subscriber.subscriptions[1].assigned or not host.running)
        publish("other", 3)
        wait_until(lambda: ("other", 3) in seen)
        assert ("t", 2) not in seen
        assert not ConsumerGroup.objects.filter(topic="t").exists()
        host.stop()


class TestReset:
    def test_back_replays_what_the_log_holds(self, consuming: Consuming) -> None:
        seen: list[int] = []
        consuming.consumer("t", lambda delivery: seen.append(delivery.payload))
        offsets = [publish("t", number, key="a").offset for number in range(5)]
        consuming.drain()
        assert move(LOG, "default", "t", offsets[1]) == offsets[1]
        consuming.drain()
        assert seen == [0, 1, 2, 3, 4, 2, 3, 4]
        move(LOG, "default", "t", 0)
        consuming.drain()
        assert seen[8:] == [0, 1, 2, 3, 4]

    def test_ahead_skips_but_never_past_the_horizon(self, consuming: Consuming) -> None:
        seen: list[int] = []
        consuming.consumer("t", lambda delivery: seen.append(delivery.payload))
        register(LOG, "default", "t")
        offsets = [publish("t", number, key="a").offset for number in range(5)]
        move(LOG, "default", "t", offsets[2])
        consuming.drain()
        assert seen == [3, 4]
        assert move(LOG, "default", "t", offsets[4] + 1_000) == offsets[4]
        publish("t", 5, key="a")
        consuming.drain()
        assert seen == [3, 4, 5]

    def test_of_one_partition_leaves_the_others_alone(self, consuming: Consuming) -> None:
        seen: list[str] = []
        consuming.consumer("t", lambda delivery: seen.append(delivery.key))
        keys = [f"k{number}" for number in range(20)]
        for key in keys:
            publish("t", 1, key=key)
        consuming.drain()
        partition = Message.objects.get(partition_key="k0").partition
        mine = set(Message.objects.filter(partition=partition).values_list("partition_key", flat=True))
        seen.clear()
        move(LOG, "default", "t", 0, partition=partition)
        consuming.drain()
        assert set(seen) == mine

    def test_what_waits_at_or_below_it_is_kept_and_what_is_above_forgotten(
        self, consuming: Consuming, settings
    ) -> None:
        settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1}
        attempts: dict[int, list[int]] = {}

        @consuming.consumer("t")
        def handle(delivery) -> None:
            attempts.setdefault(delivery.payload, []).append(delivery.attempt)
            if delivery.payload in (1, 3) and len(attempts[delivery.payload]) == 1:
                raise Retry(delay=60)

        offsets = [publish("t", number, key=f"k{number}").offset for number in range(5)]
        consuming.drain()
        move(LOG, "default", "t", offsets[2])
        assert states("t") == [(offsets[1], 1, False)]
        assert offset_row("t").offset_acked == offsets[1] - 1
        consuming.drain()
        assert attempts == {0: [1], 1: [1], 2: [1], 3: [1, 1], 4: [1, 1]}

    def test_of_one_group_leaves_the_others_alone(self, consuming: Consuming) -> None:
        seen: list[str] = []
        for group in ("one", "two"):
            consuming.consumer("t", lambda delivery: seen.append(delivery.group), group=group)
        publish("t", 1)
        consuming.drain()
        move(LOG, "one", "t", 0)
        consuming.drain()
        assert sorted(seen) == ["one", "one", "two"]

    def test_a_running_consumer_loses_its_leases_and_replays(self, consuming: Consuming) -> None:
        seen: list[int] = []
        consuming.consumer("t", lambda delivery: seen.append(delivery.payload))
        for number in range(3):
            publish("t", number, key="a")
        consuming.start()
        wait_until(lambda: len(seen) == 3)
        move(LOG, "default", "t", 0)
        publish("t", 3, key="a")
        wait_until(lambda: len(seen) >= 7)
        assert seen[-4:] == [0, 1, 2, 3]


class TestPause:
    @pytest.mark.parametrize("what", [Topic, ConsumerGroup], ids=["topic", "group"])
    def test_nothing_is_dispatched_until_it_ends(self, consuming: Consuming, what: type) -> None:
        seen: list[int] = []
        consuming.consumer("t", lambda delivery: seen.append(delivery.payload))
        host = consuming.start()
        publish("t", 1)
        wait_until(lambda: seen == [1])
        what.objects.update(paused=True)
        wait_until(lambda: host.subscriber.subscriptions[0].paused)
        publish("t", 2)
        with pytest.raises(AssertionError):
            wait_until(lambda: len(seen) > 1, timeout=0.5)
        what.objects.update(paused=False)
        wait_until(lambda: seen == [1, 2])

    def test_what_runs_ends_and_what_waits_in_the_process_does_not_start(self, consuming: Consuming) -> None:
        gate = consuming.gate()
        seen: list[int] = []

        @consuming.consumer("t")
        def handle(delivery) -> None:
            seen.append(delivery.payload)
            gate.wait(60)

        publish_many("t", [NewMessage(number, key="a") for number in range(20)])
        host = consuming.start(threads=1)
        wait_until(lambda: seen == [0] and len(host.subscriber.in_flight) > 1)
        Topic.objects.update(paused=True)
        wait_until(lambda: len(host.subscriber.in_flight) == 1)
        gate.set()
        wait_until(lambda: not len(host.subscriber.in_flight))
        assert seen == [0]
        Topic.objects.update(paused=False)
        wait_until(lambda: seen == list(range(20)))
        host.stop()
        assert not DeliveryState.objects.exists()

    def test_a_paused_group_pauses_no_other(self, consuming: Consuming) -> None:
        seen: list[str] = []
        for group in ("one", "two"):
            consuming.consumer("t", lambda delivery: seen.append(delivery.group), group=group)
            register(LOG, group, "t")
        ConsumerGroup.objects.filter(consumer_group="one").update(paused=True)
        publish("t", 1)
        consuming.drain()
        assert seen == ["two"]

    def test_publishing_goes_on(self, consuming: Consuming) -> None:
        publish("t", 1)
        Topic.objects.update(paused=True)
        publish("t", 2)
        assert Message.objects.count() == 2

    def test_a_retry_that_becomes_due_waits_too(self, consuming: Consuming) -> None:
        attempts: list[int] = []

        @consuming.consumer("t", max_attempts=1_000)
        def handle(delivery) -> None:
            attempts.append(delivery.attempt)
            raise Retry(delay=0.3)

        host = consuming.start()
        publish("t", 1)
        wait_until(lambda: attempts)
        ConsumerGroup.objects.update(paused=True)
        wait_until(lambda: host.subscriber.subscriptions[0].paused and not len(host.subscriber.in_flight))
        count = len(attempts)
        with pytest.raises(AssertionError):
            wait_until(lambda: len(attempts) > count, timeout=0.8)


class TestPriorities:
    @pytest.mark.parametrize("batch", [False, True])
    def test_lower_ones_come_first(self, consuming: Consuming, settings, batch: bool) -> None:
        settings.SQLQUEUE = {**QUICK, "TOPICS": {"t": {"partitions": 1, "priorities": 3}}}
        seen: list[int] = []

        @consuming.consumer("t", batch=batch, batch_size=5)
        def handle(given) -> None:
            seen.extend(delivery.priority for delivery in (given if batch else [given]))

        for number in range(30):
            publish("t", number, priority=number % 3)
        consuming.drain(threads=1)
        assert len(seen) == 30
        assert seen[:5] == [0] * 5
        assert sum(seen[:15]) < sum(seen[15:])

    def test_each_keeps_the_order_of_a_key(self, consuming: Consuming, settings) -> None:
        settings.SQLQUEUE = {**QUICK, "TOPICS": {"t": {"partitions": 2, "priorities": 2}}}
        seen: list[tuple[int, int]] = []
        consuming.consumer("t", lambda delivery: seen.append((delivery.priority, delivery.payload)))
        for number in range(20):
            publish("t", number, key="a", priority=number % 2)
        consuming.drain()
        for priority in (0, 1):
            mine = [number for its, number in seen if its == priority]
            assert mine == sorted(mine)
            assert len(mine) == 10

    def test_one_that_fails_and_one_that_waits_hold_back_no_other(self, consuming: Consuming, settings) -> None:
        settings.SQLQUEUE = {**QUICK, "TOPICS": {"t": {"partitions": 1, "priorities": 2}}}
        seen: list[int] = []

        @consuming.consumer("t", ordering="partition")
        def handle(delivery) -> None:
            seen.append(delivery.payload)
            if delivery.priority == 0:
                raise Retry(delay=60)

        publish("t", 0, priority=0)
        publish("t", 1, priority=1)
        consuming.drain()
        assert sorted(seen) == [0, 1]
