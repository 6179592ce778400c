"""A group starts a partition of a later epoch once it has settled everything before it that can hold its keys."""

from dataclasses import replace

import pytest
from django.db import connection
from django.db.models import Max
from django.test.utils import CaptureQueriesContext

from sqlqueue import publish
from sqlqueue.consumers.declare.registry import build
from sqlqueue.consumers.engine.subscription import Subscription
from sqlqueue.core.keys import partition_of
from sqlqueue.leases import heartbeat
from sqlqueue.leases.acquire import acquire
from sqlqueue.log import groups, layouts
from sqlqueue.log.collect import collect
from sqlqueue.log.layouts import leased as counted
from sqlqueue.log.status import anything_due, unacked_streams
from sqlqueue.models import Layout, Message, Offset, PartitionLease
from sqlqueue.operations.move import move
from tests import epochs
from tests.logs import LOG
from tests.progress import keys_of_partitions

pytestmark = pytest.mark.django_db(transaction=True)

FOREVER = 3600


@pytest.fixture(autouse=True)
def four(settings) -> None:
    settings.SQLQUEUE = {"PARTITIONS": 4, "WAKE": False}


def publish_all(count: int = 1) -> None:
    """Publish to every partition of the first epoch."""
    for _ in range(count):
        for key in keys_of_partitions(4):
            publish("t", {}, key=key)


def take(*partitions: int, group: str = "g", priorities: int = 1, **options: object) -> set[int]:
    taken = acquire(
        LOG, "me", group, "t", partitions, priorities=priorities, lease_duration=FOREVER, horizon=0, **options
    )
    return {one.ref.partition for one in taken}


def settle(*partitions: int, group: str = "g", to: int | None = None) -> None:
    """Settle everything in these partitions, as an owner would."""
    take(*partitions, group=group)
    to = Message.objects.aggregate(last=Max("offset"))["last"] if to is None else to
    rows = Offset.objects.filter(topic="t", consumer_group=group, partition__in=partitions)
    rows.update(position=to, claimed_to=to, offset_acked=to)


def start(group: str = "g") -> set[int]:
    """Let the group start what it may; return the partitions that wait."""
    groups.start_epochs(LOG, group, "t")
    return epochs.waiting("t", group)


def free_all() -> None:
    """Make every lease free, whatever its epoch, as a process of an older version would."""
    PartitionLease.objects.update(holder="", valid_until=None)


class TestStart:
    def test_nothing_before_the_end_is_known(self) -> None:
        groups.register(LOG, "g", "t")
        epochs.begin("t", 4)
        assert start() == {4, 5, 6, 7}
        free_all()
        assert take(*range(8)) == {0, 1, 2, 3}
        assert epochs.waiting("t", "g") == {4, 5, 6, 7}

    def test_at_once_behind_an_empty_epoch(self) -> None:
        groups.register(LOG, "g", "t")
        epochs.alter("t", 8)
        assert start() == set()
        assert take(*range(12)) == set(range(12))

    @pytest.mark.parametrize(
        ("partitions", "behind"), [(8, {4 + 1, 4 + 5}), (2, {4 + 1}), (6, {4 + 1, 4 + 3, 4 + 5}), (3, {4, 5, 6})]
    )
    def test_only_what_can_hold_the_same_keys_waits(self, partitions: int, behind: set[int]) -> None:
        groups.register(LOG, "g", "t")
        publish_all()
        epochs.alter("t", partitions)
        settle(0, 2, 3)
        assert start() == behind
        free_all()
        assert take(*range(4, 4 + partitions)) == set(range(4, 4 + partitions)) - behind
        free_all()
        settle(1)
        assert take(*behind) == behind

    def test_every_earlier_epoch_counts(self) -> None:
        groups.register(LOG, "g", "t")
        publish_all()
        epochs.alter("t", 3)
        epochs.publish_into("t", {}, "a")
        epochs.alter("t", 4)
        settle(1, 2, 3)
        assert start() == set(range(4, 11))
        settle(0)
        assert start() == set(range(7, 11)), "any of them may hold the key"
        settle(4, 5, 6)
        Offset.objects.filter(partition=0).update(offset_acked=0)
        assert start() == {7}, "the last has the first one's keys"

    def test_every_priority_counts(self, settings) -> None:
        settings.SQLQUEUE = {"TOPICS": {"t": {"partitions": 1, "priorities": 2}}, "WAKE": False}
        groups.register(LOG, "g", "t")
        publish("t", {}, priority=1)
        publish("t", {}, priority=0)
        epochs.alter("t", 1)
        take(0, priorities=2)
        settle(0)
        Offset.objects.filter(priority=1).update(offset_acked=0)
        assert start() == {1}

    def test_a_group_from_latest_starts_the_open_epoch_at_once(self) -> None:
        publish_all()
        epochs.alter("t", 8)
        groups.register(LOG, "late", "t", start=groups.LATEST)
        assert epochs.waiting("t", "late") == set()
        assert take(*range(12), group="late") == set(range(12))

    def test_a_group_from_earliest_walks_through_them(self) -> None:
        publish_all()
        epochs.alter("t", 8)
        groups.register(LOG, "new", "t")
        assert epochs.waiting("t", "new") == set(range(4, 12))
        settle(0, 1, 2, 3, group="new")
        assert start("new") == set()

    def test_however_many_they_are(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(layouts, "LEASES_AT_ONCE", 3)
        groups.register(LOG, "g", "t")
        publish_all()
        epochs.alter("t", 16)
        assert start() == set(range(4, 20))
        settle(0, 1, 2, 3)
        assert start() == set()

    def test_what_reads_all_epochs_by_offset_takes_all(self) -> None:
        groups.register(LOG, "g", "t")
        publish_all()
        epochs.alter("t", 2)
        start()
        assert take(*range(6), in_order=False) == set(range(6))

    def test_what_waits_does_not_count_for_balance(self) -> None:
        groups.register(LOG, "g", "t")
        publish_all()
        epochs.alter("t", 2)
        assert counted(LOG, "g", "t") == ({0, 1, 2, 3}, set(), True), "leases are missing"
        start()
        assert counted(LOG, "g", "t") == ({0, 1, 2, 3}, {4, 5}, False)
        settle(0, 2)
        assert counted(LOG, "g", "t").more
        start()
        assert counted(LOG, "g", "t") == ({0, 1, 2, 3, 4}, {5}, False)


def test_nothing_is_asked_of_a_topic_that_was_never_altered() -> None:
    groups.register(LOG, "g", "t")
    subscription = Subscription(LOG, replace(build("t", {"group": "g"}), handler=print))
    heartbeat.beat(LOG, "me", [("g", "t")], FOREVER)
    with CaptureQueriesContext(connection) as queries:
        take(0, 1, 2, 3)
        subscription.apply(groups.served(LOG, [("g", "t")])["g", "t"], 0.0)
        assert not subscription.altered
    assert subscription.partitions == 4
    assert not [query for query in queries if "retired_at" in query["sql"]]


class TestFallingWatermarks:
    @pytest.fixture(autouse=True)
    def started(self, four: None) -> None:
        """The group holds both epochs, and has settled the first."""
        groups.register(LOG, "g", "t")
        publish_all()
        epochs.alter("t", 8)
        settle(0, 1, 2, 3)
        assert start() == set()
        take(*range(12))

    def tokens(self) -> dict[int, int]:
        rows = PartitionLease.objects.order_by("partition").values_list("partition", "fencing_token")
        assert dict(rows) == dict(Offset.objects.values_list("partition", "fencing_token"))
        return dict(rows)

    def test_a_reset_takes_the_later_epochs_back(self) -> None:
        before = self.tokens()
        move(LOG, "g", "t", 0)
        assert self.tokens() == {number: token + 1 for number, token in before.items()}
        assert epochs.waiting("t", "g") == set(range(4, 12))
        free_all()
        assert take(*range(12)) == {0, 1, 2, 3}

    def test_a_reset_of_one_partition_takes_them_back_too(self) -> None:
        before = self.tokens()
        move(LOG, "g", "t", 0, partition=1)
        moved = {1, *range(4, 12)}
        assert self.tokens() == {number: token + (number in moved) for number, token in before.items()}
        assert start() == {5, 9}

    def test_a_reset_of_a_later_partition_leaves_its_epoch_alone(self) -> None:
        before = self.tokens()
        move(LOG, "g", "t", 0, partition=6)
        assert self.tokens() == {number: token + (number == 6) for number, token in before.items()}
        assert start() == set()

    def test_a_reset_behind_the_end_lets_them_start_at_once(self) -> None:
        move(LOG, "g", "t", Message.objects.aggregate(last=Max("offset"))["last"])
        assert start() == set()

    def test_a_group_that_comes_back_walks_through_them_with_higher_tokens(self) -> None:
        before = dict(PartitionLease.objects.values_list("partition", "fencing_token"))
        groups.remove(LOG, "g", "t")
        groups.register(LOG, "g", "t")
        assert epochs.waiting("t", "g") == set(range(4, 12))
        after = dict(PartitionLease.objects.values_list("partition", "fencing_token"))
        assert all(after[number] > token for number, token in before.items())

    def test_acquiring_looks_itself(self) -> None:
        """A watermark that has fallen while no lease was revoked for it."""
        PartitionLease.objects.update(holder="", valid_until=None)
        Offset.objects.filter(partition=2).update(offset_acked=0)
        before = self.tokens()
        assert take(*range(12)) == set(range(12)) - {6, 10}
        assert epochs.waiting("t", "g") == {6, 10}
        after = dict(PartitionLease.objects.values_list("partition", "fencing_token"))
        assert after == {number: token + 1 for number, token in before.items()}


class TestWhatIsLeft:
    def test_the_log_of_all_epochs_is_told(self) -> None:
        groups.register(LOG, "g", "t")
        publish_all()
        epochs.alter("t", 8)
        epochs.publish_into("t", {}, "a")
        partition = 4 + partition_of("a", 8)
        assert {ref.partition for ref in unacked_streams(LOG, "g", "t")} == {0, 1, 2, 3, partition}
        settle(0, 1, 2, 3)
        assert anything_due(LOG, "g", "t", "key")

    def test_what_waits_for_a_delayed_delivery_is_not_due(self) -> None:
        groups.register(LOG, "g", "t")
        publish_all()
        epochs.alter("t", 4)
        epochs.publish_into("t", {}, keys_of_partitions(4)[1])
        settle(0, 1, 2, 3)
        assert anything_due(LOG, "g", "t", "key")
        Offset.objects.filter(partition=1).update(offset_acked=0)
        assert not anything_due(LOG, "g", "t", "key")


class TestRetirement:
    def test_an_epoch_goes_once_nothing_is_left_of_it(self, settings) -> None:
        settings.SQLQUEUE = {"PARTITIONS": 4, "RETENTION": 0.001, "WAKE": False}
        groups.register(LOG, "g", "t")
        groups.register(LOG, "away", "t")
        publish_all()
        epochs.alter("t", 2)
        kept = epochs.publish_into("t", {}, "a")
        settle(0, 1, 2, 3)
        collect(LOG)
        assert len(epochs.epochs("t")) == 2, "one group has not read it"
        settle(0, 1, 2, 3, group="away")
        collect(LOG)
        assert [epoch.numbers for epoch in epochs.epochs("t")] == [range(4, 6)]
        assert epochs.leased("t", "g") == epochs.leased("t", "away") == {4, 5}
        assert not Offset.objects.filter(partition__lt=4).exists()
        assert Layout.objects.get(end__isnull=False).retired_at is not None
        assert list(Message.objects.values_list("offset", flat=True)) == [kept]
        assert start() == start("away") == set()
        groups.register(LOG, "new", "t")
        assert epochs.leased("t", "new") == {4, 5}
        assert not epochs.waiting("t", "new")

    def test_an_epoch_with_something_unsettled_stays(self, settings) -> None:
        groups.register(LOG, "g", "t")
        publish_all()
        epochs.alter("t", 2)
        settle(0, 1, 2, 3)
        collect(LOG)
        assert len(epochs.epochs("t")) == 2, "the log is kept"
        from tests.factories import DeliveryStateFactory

        row = DeliveryStateFactory(topic="t", consumer_group="g", partition=0, acked=False)
        Message.objects.all().delete()
        collect(LOG)
        assert len(epochs.epochs("t")) == 2
        row.delete()
        collect(LOG)
        assert len(epochs.epochs("t")) == 1

    def test_the_first_epoch_that_is_left_goes_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(layouts, "LEASES_AT_ONCE", 3)
        groups.register(LOG, "g", "t")
        publish_all()
        epochs.alter("t", 2)
        epochs.alter("t", 4)
        collect(LOG)
        assert len(epochs.epochs("t")) == 3
        Message.objects.all().delete()
        collect(LOG)
        assert [epoch.number for epoch in epochs.epochs("t")] == [2]
        assert epochs.leased("t", "g") == {6, 7, 8, 9}
