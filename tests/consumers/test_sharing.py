"""One partition on several processes: its messages are shared among slices, each with a lease of its own."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import F
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from sqlqueue import Batch, ConfigurationError, NewMessage, Reject, get_batch, publish, publish_many
from sqlqueue.consumers.delivery import Delivery
from sqlqueue.consumers.ownership import Ownership
from sqlqueue.consumers.registry import build
from sqlqueue.consumers.subscription import Subscription
from sqlqueue.core.slices import FACTOR, MOST_SLICES, slice_of
from sqlqueue.database.slices import in_slice, of_offset_row
from sqlqueue.database.statements import execute
from sqlqueue.leases import heartbeat, sharing
from sqlqueue.log import collect, groups, status
from sqlqueue.models import (
    BatchProgress,
    ConsumerGroup,
    DeliveryState,
    Message,
    Offset,
    PartitionLease,
    SubscriberHeartbeat,
    Topic,
)
from sqlqueue.operations.delete import delete, unsettled
from sqlqueue.operations.move import move
from sqlqueue.operations.purge import preview, purge
from sqlqueue.operations.reschedule import acknowledge, reschedule
from sqlqueue.stats.group_status import statuses_of
from sqlqueue.stats.partitions import partition_stats
from sqlqueue.stats.rewind_preview import count_above
from sqlqueue.stats.survey import survey
from tests.batches.following import counted
from tests.consuming import Consuming
from tests.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

ALIAS, GROUP, TOPIC = "default", "default", "t"
PHANTOM = "a phantom"


@pytest.fixture(autouse=True)
def one_partition(consuming: Consuming, settings: Any) -> None:
    settings.SQLQUEUE = {**settings.SQLQUEUE, "PARTITIONS": 1}


class Got(Counter[int]):
    """Counts the payloads of what was delivered."""

    def __call__(self, delivery: Delivery) -> None:
        self[delivery.payload] += 1


def share(consuming: Consuming, slices: int, handler: Callable[[Delivery], Any], **options: Any) -> None:
    """Let one process start, ask for so many slices, and do what there is to do."""
    consuming.consumer(TOPIC, handler, ordering="none", sharing=slices, **options)
    consuming.drain()
    assert ConsumerGroup.objects.get().sharing == slices
    consuming.forget()


def slices_of(offsets: Any) -> Counter[int]:
    return Counter(slice_of(offset, 4) for offset in offsets)


class TestOption:
    @pytest.mark.once
    @pytest.mark.parametrize("ordering", ["key", "partition"])
    def test_it_is_refused_where_there_is_an_order_to_keep(self, ordering: str) -> None:
        with pytest.raises(ConfigurationError, match=f"ordering='{ordering}'.*more partitions"):
            build(TOPIC, {"ordering": ordering, "sharing": 8})

    @pytest.mark.once
    @pytest.mark.parametrize("slices", [0, -1, MOST_SLICES + 1, 2.0, True, "8", None])
    def test_it_is_a_number_of_slices(self, slices: Any) -> None:
        with pytest.raises(ConfigurationError, match="sharing"):
            build(TOPIC, {"ordering": "none", "sharing": slices})

    @pytest.mark.once
    def test_the_least_and_the_most_are_taken(self) -> None:
        for slices in (1, MOST_SLICES):
            assert build(TOPIC, {"ordering": "none", "sharing": slices})["options"].sharing == slices


@pytest.mark.parametrize("slices", [2, 3, 7, MOST_SLICES])
def test_sql_and_python_find_the_same_slice(slices: int) -> None:
    publish_many(TOPIC, range(200))
    found: dict[int, int] = {}
    for slice in range(slices):
        where = in_slice('"offset"', slice, slices)
        rows = execute(ALIAS, f'SELECT "offset" FROM sqlqueue_message WHERE topic = %s{where}', (TOPIC,)).fetchall()
        found |= {offset: slice for (offset,) in rows}
    assert found == {offset: slice_of(offset, slices) for offset in Message.objects.values_list("offset", flat=True)}
    place = {"topic": TOPIC, "consumer_group": GROUP, "partition": 0, "slices": slices}
    marks = {"position": 0, "offset_acked": 0, "claimed_to": 0, "fencing_token": 1}
    Offset.objects.bulk_create([Offset(**place, **marks, slice=slice) for slice in range(slices)])
    joined = 'SELECT m."offset", o.slice FROM sqlqueue_message m JOIN sqlqueue_offset o ON '
    assert dict(execute(ALIAS, joined + of_offset_row('m."offset"', "o")).fetchall()) == found


class TestDelivery:
    def test_each_message_is_delivered_once_whichever_slice_it_is_in(self, consuming: Consuming) -> None:
        got = Got()
        publish_many(TOPIC, range(500))
        share(consuming, 4, got)
        assert got == Counter(range(500))
        assert sorted(Offset.objects.values_list("slice", "slices")) == [(slice, 4) for slice in range(4)]
        assert not DeliveryState.objects.exists()

    def test_what_fails_is_retried_in_its_slice(self, consuming: Consuming) -> None:
        got = Got()

        def handle(delivery: Delivery) -> None:
            if delivery.attempt == 1:
                raise ValueError("at the first attempt")
            got(delivery)

        publish_many(TOPIC, range(40))
        consuming.consumer(TOPIC, handle, ordering="none", sharing=4, backoff=0.01)
        consuming.start()
        wait_until(lambda: got == Counter(range(40)) and not status.unread_streams(ALIAS, GROUP, TOPIC))
        wait_until(lambda: not DeliveryState.objects.exists())

    def test_what_an_operator_reschedules_is_noticed_by_the_owner_of_its_slice(
        self, consuming: Consuming, settings: Any
    ) -> None:
        settings.SQLQUEUE = {**settings.SQLQUEUE, "HEARTBEAT_INTERVAL": 0.2}
        got = Got()

        def handle(delivery: Delivery) -> None:
            if delivery.attempt == 1:
                raise ValueError("at the first attempt")
            got(delivery)

        publish_many(TOPIC, range(20))
        consuming.consumer(TOPIC, handle, ordering="none", sharing=4, backoff=3600)
        for _ in range(2):
            consuming.start()
        wait_until(lambda: DeliveryState.objects.filter(in_flight=0, retry_count=1).count() == 20)
        reschedule(ALIAS, GROUP, TOPIC, Message.objects.filter(topic=TOPIC).values_list("offset", flat=True))
        wait_until(lambda: got == Counter(range(20)))

    @pytest.mark.parametrize("batch", [False, True])
    def test_atomic_handlers_settle_in_their_slices(self, consuming: Consuming, batch: bool) -> None:
        got = Got()

        def handle(delivered: Any) -> None:
            for delivery in delivered if batch else [delivered]:
                got(delivery)

        publish_many(TOPIC, range(200))
        share(consuming, 3, handle, atomic=True, batch=batch)
        assert got == Counter(range(200))
        assert not status.unacked_streams(ALIAS, GROUP, TOPIC)

    def test_every_slice_counts_the_members_of_a_batch(self, consuming: Consuming) -> None:
        def handle(delivery: Delivery) -> None:
            if delivery.payload == 60:  # so the batch is not over
                raise ValueError("not yet")

        with Batch() as batch:
            for number in range(61):
                batch.publish(TOPIC, number)
        share(consuming, 4, handle, backoff=3600)
        assert get_batch(batch.id).done == 60
        move(ALIAS, GROUP, TOPIC, offsets_of([39])[0])
        assert get_batch(batch.id).done == 40
        share(consuming, 3, handle, backoff=3600)
        assert get_batch(batch.id).done == 60

    def test_members_that_were_counted_are_not_counted_again_by_other_slices(self, consuming: Consuming) -> None:
        with Batch() as batch:
            for number in range(60):
                batch.publish(TOPIC, number)
            batch.publish("nobody", 1)  # so the batch is not over
        share(consuming, 4, Got())
        # As if no process had held the first slice so far.
        Offset.objects.filter(slice=0).update(position=0, claimed_to=0, offset_acked=0)
        BatchProgress.objects.filter(slice=0).delete()
        consuming.consumer(TOPIC, lambda delivery: None, ordering="none", sharing=3)
        heartbeat.beat(ALIAS, PHANTOM, [(GROUP, TOPIC)], 300, sharing={(GROUP, TOPIC): 3})
        assert sharing.change(ALIAS, GROUP, TOPIC)
        heartbeat.leave(ALIAS, PHANTOM)
        move(ALIAS, GROUP, TOPIC, offsets_of([19])[0])
        assert counted(batch.id) == (20, 0)
        consuming.drain()
        assert counted(batch.id) == (60, 0)
        assert not DeliveryState.objects.exists()

    def test_dead_letters_beyond_a_slice_are_counted_out_as_such(self, consuming: Consuming) -> None:
        def refuse(delivery: Delivery) -> None:
            raise Reject("never")

        with Batch() as batch:
            for number in range(60):
                batch.publish(TOPIC, number)
            batch.publish("nobody", 1)  # so the batch is not over
        share(consuming, 4, refuse)
        Offset.objects.filter(slice=0).update(position=0, claimed_to=0, offset_acked=0)  # as if it had had no owner
        BatchProgress.objects.filter(slice=0).delete()
        heartbeat.beat(ALIAS, PHANTOM, [(GROUP, TOPIC)], 300, sharing={(GROUP, TOPIC): 3})
        assert sharing.change(ALIAS, GROUP, TOPIC)
        heartbeat.leave(ALIAS, PHANTOM)
        first, last = offsets_of([0])[0], offsets_of([19])[0]
        skipped = slices_of(range(first, last + 1))[0]
        move(ALIAS, GROUP, TOPIC, last)
        assert counted(batch.id) == (skipped, 20 - skipped)

    def test_processes_hold_fair_shares_of_one_partition(self, consuming: Consuming) -> None:
        workers: set[int] = set()
        gate = consuming.gate()

        def handle(delivery: Delivery) -> None:
            workers.add(threading.get_ident())
            gate.wait(60)

        consuming.consumer(TOPIC, handle, ordering="none", sharing=8)
        hosts = [consuming.start(threads=1) for _ in range(3)]
        wait_until(lambda: sorted(len(host.subscriber.ownership.leases()) for host in hosts) == [2, 3, 3])
        publish_many(TOPIC, range(100))
        wait_until(lambda: len(workers) == 3)
        gate.set()
        hosts[0].stop()
        wait_until(lambda: sorted(len(host.subscriber.ownership.leases()) for host in hosts[1:]) == [4, 4])
        wait_until(lambda: not status.unread_streams(ALIAS, GROUP, TOPIC))

    def test_partitions_that_are_not_shared_are_read_by_the_same_statements_as_ever(self, consuming: Consuming) -> None:
        publish_many(TOPIC, range(10))
        consuming.consumer(TOPIC, Got(), ordering="none")
        with CaptureQueriesContext(connection) as seen:
            subscriber = consuming.subscriber(background_tasks=False)
            subscriber.start()
            try:
                for _ in range(5):
                    subscriber.loop.run_once()
            finally:
                subscriber.close()
        assert seen.captured_queries
        texts = [query["sql"] for query in seen.captured_queries if "SAVEPOINT" not in query["sql"]]  # random names
        assert not [text for text in texts if str(FACTOR) in text]


class TestChange:
    @pytest.mark.parametrize("course", [(1, 8, 3), (8, 1, 8), (3, 2, 1)])
    def test_nothing_is_lost_and_nothing_comes_twice(self, consuming: Consuming, course: tuple[int, ...]) -> None:
        got = Got()
        for number, slices in enumerate(course):
            publish_many(TOPIC, range(100 * number, 100 * (number + 1)))
            share(consuming, slices, got)
            assert Offset.objects.count() == PartitionLease.objects.count() == slices
        assert got == Counter(range(100 * len(course)))
        assert not DeliveryState.objects.exists()

    def test_what_waits_waits_on_in_another_slice(self, consuming: Consuming) -> None:
        def fail(delivery: Delivery) -> None:
            raise ValueError("not yet")

        publish_many(TOPIC, range(40))
        share(consuming, 2, fail, backoff=3600)
        waiting = set(DeliveryState.objects.values_list("message_offset", "retry_count", "invisible_until"))
        assert len(waiting) == 40
        group = survey(ALIAS).group(TOPIC, GROUP)
        assert (group.lag, group.failing) == (40, 40)
        got = Got()
        share(consuming, 5, got)
        assert not got
        assert set(DeliveryState.objects.values_list("message_offset", "retry_count", "invisible_until")) == waiting
        DeliveryState.objects.update(invisible_until=timezone.now() - timedelta(minutes=1))
        share(consuming, 3, got)
        assert got == Counter(range(40))

    def test_handlers_that_run_end_first(self, consuming: Consuming) -> None:
        got = Got()
        begun, gate = threading.Event(), consuming.gate()

        def handle(delivery: Delivery) -> None:
            begun.set()
            gate.wait(60)
            got(delivery)

        consuming.consumer(TOPIC, handle, ordering="none")
        publish_many(TOPIC, range(20))
        former = consuming.start(threads=2)
        assert begun.wait(60)
        consuming.forget()
        consuming.consumer(TOPIC, got, ordering="none", sharing=4)
        consuming.start()
        wait_until(lambda: SubscriberHeartbeat.objects.filter(sharing=4).exists())
        wait_until(lambda: former.subscriber.subscriptions[0].leaving)
        assert ConsumerGroup.objects.get().sharing == 1
        gate.set()
        wait_until(lambda: ConsumerGroup.objects.get().sharing == 4)
        wait_until(lambda: got == Counter(range(20)))
        former.stop()

    def test_handlers_that_hang_are_not_waited_for_for_ever(self, consuming: Consuming, settings: Any) -> None:
        settings.SQLQUEUE = {**settings.SQLQUEUE, "LEASE_DURATION": 3, "HEARTBEAT_INTERVAL": 0.5}
        got, begun, gate = Got(), threading.Event(), consuming.gate()

        def hang(delivery: Delivery) -> None:
            if not begun.is_set():
                begun.set()
                gate.wait(600)
            got(delivery)

        consuming.consumer(TOPIC, hang, ordering="none", visibility_timeout=3600)
        publish(TOPIC, 0)
        former = consuming.start()
        assert begun.wait(60)
        publish_many(TOPIC, range(1, 5))
        consuming.forget()
        consuming.consumer(TOPIC, got, ordering="none", sharing=4, visibility_timeout=1.0)
        consuming.start()
        wait_until(lambda: ConsumerGroup.objects.get().sharing == 4)
        wait_until(lambda: {1, 2, 3, 4} <= set(got))
        gate.set()
        wait_until(lambda: set(got) == set(range(5)))
        former.stop()

    def test_a_process_that_needs_whole_partitions_has_them(self, consuming: Consuming) -> None:
        consuming.consumer(TOPIC, Got(), ordering="none", sharing=4)
        host = consuming.start()
        wait_until(lambda: len(host.subscriber.ownership.leases()) == 4)
        heartbeat.beat(ALIAS, PHANTOM, [(GROUP, TOPIC)], 300)
        wait_until(lambda: ConsumerGroup.objects.get().sharing == 1)
        heartbeat.leave(ALIAS, PHANTOM)
        wait_until(lambda: len(host.subscriber.ownership.leases()) == 4)

    def test_what_waits_behind_its_key_is_delivered_without_an_order(self, consuming: Consuming) -> None:
        failed = threading.Event()

        def fail_first(delivery: Delivery) -> None:
            failed.set()
            raise ValueError("not yet")

        publish_many(TOPIC, [NewMessage(number, key=str(number % 3)) for number in range(30)])
        consuming.consumer(TOPIC, fail_first, ordering="key", backoff=3600)
        consuming.drain()
        assert failed.is_set()
        consuming.forget()
        heartbeat.beat(ALIAS, PHANTOM, [(GROUP, TOPIC)], 300, sharing={(GROUP, TOPIC): 4})
        with CaptureQueriesContext(connection) as seen:
            assert sharing.change(ALIAS, GROUP, TOPIC)
        heartbeat.leave(ALIAS, PHANTOM)
        assert sum("NOT EXISTS" in one["sql"] for one in seen) == 1  # however many keys wait
        got = Got()
        share(consuming, 4, got)
        assert got == Counter(range(3, 30))
        assert list(DeliveryState.objects.values_list("retry_count", flat=True)) == [1] * 3

    def test_tokens_of_slices_do_not_come_again(self, consuming: Consuming) -> None:
        used: dict[int, int] = {}  # the highest token of each slice

        def rise(fresh: int = 1) -> None:
            for slice, token in PartitionLease.objects.values_list("slice", "fencing_token"):
                assert token >= used.get(slice, 0) + fresh
                used[slice] = token

        for slices in (4, 1, 4, 2, 4):
            share(consuming, slices, Got())
            rise()
            PartitionLease.objects.filter(slice=3).update(fencing_token=F("fencing_token") + 100)
            rise(fresh=0)
        groups.remove(ALIAS, GROUP, TOPIC)
        share(consuming, 4, Got())
        rise()

    def test_nothing_is_acquired_while_a_change_is_due(self, consuming: Consuming) -> None:
        share(consuming, 4, Got())
        later = timezone.now() + timedelta(hours=1)
        PartitionLease.objects.filter(slice=3).update(holder=PHANTOM, valid_until=later)
        consuming.consumer(TOPIC, Got(), ordering="none", sharing=8)
        subscriber = consuming.subscriber(background_tasks=False)
        subscriber.start()
        try:
            subscriber.loop.balance()
            assert not subscriber.subscriptions[0].holding
            free_the_phantoms()
            subscriber.loop.balance()
            assert subscriber.subscriptions[0].holding == set(range(8))
        finally:
            subscriber.close()

    def test_a_process_that_needs_whole_partitions_takes_no_slice_when_its_heartbeat_has_expired(
        self, consuming: Consuming
    ) -> None:
        share(consuming, 4, Got())
        heartbeat.beat(ALIAS, PHANTOM, [(GROUP, TOPIC)], 300)
        SubscriberHeartbeat.objects.update(expires_at=timezone.now() - timedelta(hours=1))
        heartbeat.beat(ALIAS, "another", [(GROUP, TOPIC)], 300, sharing={(GROUP, TOPIC): 4})
        consuming.consumer(TOPIC, Got(), ordering="key")
        mine = Ownership(ALIAS, PHANTOM, [Subscription(ALIAS, one) for one in consuming.registered()], 60)
        assert not mine.balance(0, time.monotonic)
        assert not PartitionLease.objects.exclude(holder="").exists()

    def test_nothing_changes_while_a_lease_is_held(self, consuming: Consuming) -> None:
        share(consuming, 4, Got())
        heartbeat.beat(ALIAS, PHANTOM, [(GROUP, TOPIC)], 300, sharing={(GROUP, TOPIC): 8})
        later = timezone.now() + timedelta(hours=1)
        PartitionLease.objects.filter(slice=3).update(holder=PHANTOM, valid_until=later)
        assert not sharing.change(ALIAS, GROUP, TOPIC)
        PartitionLease.objects.update(valid_until=timezone.now() - timedelta(hours=1))
        assert sharing.change(ALIAS, GROUP, TOPIC)
        assert not sharing.change(ALIAS, GROUP, TOPIC)


@pytest.fixture
def uneven(consuming: Consuming) -> list[int]:
    """A partition of four slices, of which all but slice 2 have read everything: its lease is held by a process that
    does nothing. Returns the payloads of that slice."""
    publish_many(TOPIC, range(100))
    share(consuming, 4, Got())
    move(ALIAS, GROUP, TOPIC, 0)
    later = timezone.now() + timedelta(hours=1)
    PartitionLease.objects.filter(slice=2).update(holder=PHANTOM, valid_until=later)
    got = Got()
    consuming.consumer(TOPIC, got, ordering="none", sharing=4)
    host = consuming.start()
    offsets = dict(Message.objects.values_list("payload", "offset"))
    left = [payload for payload, offset in offsets.items() if slice_of(offset, 4) == 2]
    wait_until(lambda: len(got) == 100 - len(left))
    host.stop()
    consuming.forget()
    assert 10 < len(left) < 40
    return sorted(left)


def _of_and_others(slice: int) -> tuple[list[int], list[int]]:
    return [slice], [other for other in range(4) if other != slice]


def free_the_phantoms() -> None:
    PartitionLease.objects.update(holder="", valid_until=None)


def offsets_of(payloads: list[int]) -> list[int]:
    return [offset for payload, offset in Message.objects.values_list("payload", "offset") if payload in payloads]


class TestUnevenSlices:
    @pytest.mark.parametrize("slices", [1, 3, 4, 8])
    def test_another_number_of_slices_goes_on_where_each_was(
        self, consuming: Consuming, uneven: list[int], slices: int
    ) -> None:
        free_the_phantoms()
        got = Got()
        share(consuming, slices, got)
        assert got == Counter(uneven)
        assert not DeliveryState.objects.exists()

    def test_what_they_have_claimed_is_delivered_again(self, consuming: Consuming, uneven: list[int]) -> None:
        free_the_phantoms()
        last = Message.objects.order_by("-offset").values_list("offset", flat=True)[0]
        Offset.objects.filter(slice=2).update(claimed_to=last)
        heartbeat.beat(ALIAS, PHANTOM, [(GROUP, TOPIC)], 300, sharing={(GROUP, TOPIC): 2})
        assert sharing.change(ALIAS, GROUP, TOPIC)
        heartbeat.leave(ALIAS, PHANTOM)
        states = DeliveryState.objects.filter(acked=False)
        assert set(states.values_list("message_offset", flat=True)) == set(offsets_of(uneven))
        assert set(states.values_list("in_flight", "retry_count")) == {(1, 1)}

    def test_stats_tell_the_lag_of_each_slice(self, uneven: list[int]) -> None:
        group = survey(ALIAS).group(TOPIC, GROUP)
        assert (group.lag, group.partitions) == (len(uneven), 1)
        lags = {one.slice: one.lag for one in partition_stats(ALIAS, TOPIC, GROUP)}
        assert lags == {0: 0, 1: 0, 2: len(uneven), 3: 0}
        holders = {one.slice: one.holder for one in partition_stats(ALIAS, TOPIC, GROUP)}
        assert holders == {0: "", 1: "", 2: PHANTOM, 3: ""}
        assert [ref.slice for ref in status.unread_streams(ALIAS, GROUP, TOPIC)] == [2]
        offset = publish(TOPIC, 100).offset
        assert offset
        oldest = {one.slice: one.oldest for one in partition_stats(ALIAS, TOPIC, GROUP)}
        assert oldest == {**dict.fromkeys(range(4)), slice_of(offset, 4): offset, 2: min(offsets_of(uneven))}

    def test_each_message_has_the_status_that_its_slice_says(self, uneven: list[int]) -> None:
        messages = {message.offset: message for message in Message.objects.all()}
        found = statuses_of(ALIAS, list(messages.values()))
        unread = {messages[offset].payload for offset, (one,) in found.items() if one.state == "waiting"}
        assert unread == set(uneven)
        assert {one.state for (one,) in found.values()} == {"waiting", "acked"}

    def test_collection_waits_for_the_slowest(self, uneven: list[int], settings: Any) -> None:
        Topic.objects.update(retention=0.0)
        first = min(offsets_of(uneven))
        last = max(Message.objects.values_list("offset", flat=True))
        with_watermark = collect.acked_by_all(ALIAS, TOPIC, [(0, 0)], last)[0, 0]
        assert with_watermark < first
        Offset.objects.filter(slice=2).delete()  # one that no process has acquired is at the group's start
        assert collect.acked_by_all(ALIAS, TOPIC, [(0, 0)], last)[0, 0] == 0

    def test_a_rewind_moves_every_slice(self, consuming: Consuming, uneven: list[int]) -> None:
        rewound = count_above(ALIAS, TOPIC, 0, None, GROUP)
        assert (rewound.above, rewound.again, rewound.skipped) == (100, 100 - len(uneven), 0)
        move(ALIAS, GROUP, TOPIC, 0, 0)
        got = Got()
        share(consuming, 4, got)
        assert got == Counter(range(100))

    def test_a_partition_that_no_process_has_acquired_is_moved_in_every_slice(self, uneven: list[int]) -> None:
        Offset.objects.all().delete()
        target = offsets_of([50])[0]
        move(ALIAS, GROUP, TOPIC, target, 0)
        assert list(Offset.objects.order_by("slice").values_list("slice", "slices", "position")) == [
            (slice, 4, target) for slice in range(4)
        ]

    def test_a_skip_moves_every_slice(self, consuming: Consuming, uneven: list[int]) -> None:
        last = max(Message.objects.values_list("offset", flat=True))
        assert count_above(ALIAS, TOPIC, last, None, GROUP).skipped == len(uneven)
        move(ALIAS, GROUP, TOPIC, last)
        got = Got()
        share(consuming, 4, got)
        assert not got

    def test_a_purge_counts_and_skips_what_a_slice_has_not_read(self, consuming: Consuming, uneven: list[int]) -> None:
        assert preview(ALIAS, TOPIC).unsettled == {GROUP: len(uneven)}
        assert purge(ALIAS, TOPIC, unsettled=True).skipped == [GROUP]
        got = Got()
        share(consuming, 4, got)
        assert not got

    def test_deleting_and_acknowledging_know_what_is_unread(self, consuming: Consuming, uneven: list[int]) -> None:
        all_of_them = list(Message.objects.values_list("offset", flat=True))
        first, *others = sorted(offsets_of(uneven))
        assert unsettled(ALIAS, TOPIC, all_of_them)[GROUP].waiting == {first, *others}
        assert acknowledge(ALIAS, GROUP, TOPIC, [first]).changed == 1
        assert delete(ALIAS, TOPIC, all_of_them).unsettled == len(others)
        got = Got()
        share(consuming, 4, got)
        assert sum(got.values()) == len(others)

    def test_a_publisher_that_asks_for_uniqueness_knows_what_is_unread(self, uneven: list[int]) -> None:
        free_the_phantoms()
        first = publish(TOPIC, 1000, unique_for="key", key="k").offset
        assert first
        assert not publish(TOPIC, 1000, unique_for="key", key="k").created
        rows, others = (Offset.objects.filter(slice__in=some) for some in _of_and_others(slice_of(first, 4)))
        rows.update(position=first - 1)
        others.update(position=first)
        assert not publish(TOPIC, 1000, unique_for="key", key="k").created
        rows.update(position=first)
        others.update(position=0)
        assert publish(TOPIC, 1000, unique_for="key", key="k").created
