"""Fair share: every live subscriber of a group holds its part of the partitions, and no more."""

from collections import Counter

import pytest
from django.db.models import F

from sqlqueue import publish
from sqlqueue.leases import heartbeat
from sqlqueue.leases.acquire import acquire
from sqlqueue.leases.assignment import Balance, Balancer, Holding
from sqlqueue.log.groups import register
from sqlqueue.models import Offset, PartitionLease, SubscriberHeartbeat
from tests.consuming import QUICK, Consuming, Host
from tests.logs import LOG
from tests.processes import wait_until
from tests.progress import keys_of_partitions


def beat(*subscribers: str, group: str = "g") -> None:
    for name in subscribers:
        heartbeat.beat(LOG, name, [(group, "t")], 300)


def held_by(name: str, group: str = "g") -> set[int]:
    leases = PartitionLease.objects.filter(topic="t", consumer_group=group, holder=name)
    return set(leases.values_list("partition", flat=True))


def balance(name: str, held: set[int], group: str = "g", at: Balancer | None = None, now: float = 0.0) -> Balance:
    count = PartitionLease.objects.filter(topic="t", consumer_group=group).count()
    balancer = at or Balancer(LOG, name, orphan_timeout=30.0)
    return balancer.compare({(group, "t"): Holding(count, held)}, now)[group, "t"]


def take_turns(*subscribers: str, rounds: int = 3) -> list[int]:
    """Let each do its balancing in turn, until nothing changes; return how many each holds."""
    for _ in range(rounds):
        for name in subscribers:
            plan = balance(name, held_by(name))
            PartitionLease.objects.filter(holder=name, partition__in=plan.give_up).update(holder="", valid_until=None)
            if plan.take and not plan.give_up:
                acquire(LOG, name, "g", "t", list(plan.take), priorities=1, lease_duration=300, horizon=0)
    return [len(held_by(name)) for name in subscribers]


def partitions(count: int, settings) -> None:
    settings.SQLQUEUE = {"PARTITIONS": count}
    register(LOG, "g", "t")


@pytest.mark.django_db(transaction=True)
class TestArithmetic:
    @pytest.mark.parametrize(
        ("count", "subscribers", "expected"),
        [
            (5, 2, [2, 3]),
            (12, 5, [2, 2, 2, 3, 3]),
            (2, 4, [0, 0, 1, 1]),
            (1, 3, [0, 0, 1]),
            (32, 1, [32]),
            (100, 7, [14, 14, 14, 14, 14, 15, 15]),
        ],
    )
    def test_each_gets_the_quotient_and_the_first_the_remainder(
        self, settings, count: int, subscribers: int, expected: list[int]
    ) -> None:
        partitions(count, settings)
        names = [f"s{number}" for number in range(subscribers)]
        beat(*names)
        assert sorted(take_turns(*names)) == expected
        assert PartitionLease.objects.exclude(holder="").count() == count

    def test_a_joiner_gets_its_share_from_what_the_others_give_up(self, settings) -> None:
        partitions(9, settings)
        beat("a", "b")
        assert sorted(take_turns("a", "b")) == [4, 5]
        before = {name: held_by(name) for name in ("a", "b")}
        beat("c")
        assert take_turns("a", "b", "c") == [3, 3, 3]
        assert all(held_by(name) <= before[name] for name in ("a", "b")), "more moved than had to"

    def test_a_leavers_share_goes_to_the_others(self, settings) -> None:
        partitions(9, settings)
        beat("a", "b", "c")
        take_turns("a", "b", "c")
        PartitionLease.objects.filter(holder="c").update(holder="", valid_until=None)
        heartbeat.leave(LOG, "c")
        assert sorted(take_turns("a", "b")) == [4, 5]

    def test_one_whose_heartbeat_has_expired_has_no_share(self, settings) -> None:
        partitions(4, settings)
        beat("alive")
        heartbeat.beat(LOG, "dead", [("g", "t")], 0)
        assert take_turns("alive") == [4]

    def test_a_subscriber_of_another_group_or_topic_has_no_share(self, settings) -> None:
        partitions(4, settings)
        beat("mine")
        beat("other", group="h")
        heartbeat.beat(LOG, "another", [("g", "u")], 300)
        assert take_turns("mine") == [4]

    def test_the_remainder_is_not_always_the_same_ones(self, settings) -> None:
        settings.SQLQUEUE = {"PARTITIONS": 3}
        more: Counter[str] = Counter()
        for number in range(12):
            group = f"g{number}"
            register(LOG, group, "t")
            beat("a", "b", group=group)
            plans = {name: balance(name, set(), group) for name in ("a", "b")}
            more[max(plans, key=lambda name: len(plans[name].take))] += 1
        assert set(more) == {"a", "b"}

    def test_a_lease_of_its_own_that_it_neither_knows_nor_wants_is_to_be_freed(self, settings) -> None:
        partitions(4, settings)
        beat("mine", "other")
        acquire(LOG, "mine", "g", "t", [0, 1, 2], priorities=1, lease_duration=30, horizon=0)
        plan = balance("mine", set())
        assert len(plan.take) == 2
        assert {0, 1, 2} - set(plan.take) == set(plan.free)
        assert balance("mine", {0, 1}).free == [2]
        assert balance("other", set()).free == []


class TestRunning:
    """With subscribers that run, lease and give up by themselves."""

    @pytest.fixture(autouse=True)
    def five(self, consuming: Consuming, settings) -> None:
        settings.SQLQUEUE = {**QUICK, "PARTITIONS": 5, "BALANCE_INTERVAL": 0.05}
        consuming.consumer("t", lambda delivery: None, group="g")

    def shares(self, *hosts: Host) -> list[int]:
        return sorted(len(held_by(host.name)) for host in hosts)

    def test_two_share_a_joiner_gets_its_part_and_a_leavers_part_moves(self, consuming: Consuming) -> None:
        one = consuming.start()
        wait_until(lambda: self.shares(one) == [5])
        two = consuming.start()
        wait_until(lambda: self.shares(one, two) == [2, 3])
        three = consuming.start()
        wait_until(lambda: self.shares(one, two, three) == [1, 2, 2])
        two.stop()
        wait_until(lambda: self.shares(one, three) == [2, 3])
        one.stop()
        wait_until(lambda: self.shares(three) == [5])
        three.stop()
        assert not PartitionLease.objects.exclude(holder="").exists()
        assert not SubscriberHeartbeat.objects.exists()

    def test_more_subscribers_than_partitions_are_idle_and_take_over(self, consuming: Consuming) -> None:
        hosts = [consuming.start() for _ in range(6)]
        wait_until(lambda: self.shares(*hosts) == [0, 1, 1, 1, 1, 1])
        busy = next(host for host in hosts if held_by(host.name))
        busy.stop()
        hosts.remove(busy)
        wait_until(lambda: self.shares(*hosts) == [1, 1, 1, 1, 1])

    def test_the_partitions_of_one_that_died_are_taken_when_its_leases_expire(self, consuming: Consuming) -> None:
        """By the database's clock; what it had claimed is in doubt, with its attempt counted."""
        seen: list[int] = []
        consuming.consumer("u", lambda delivery: seen.append(delivery.attempt), group="g")
        register(LOG, "g", "u")
        offset = publish("u", 1, key="a").offset
        heartbeat.beat(LOG, "the dead", [("g", "u")], 0.4)
        acquire(LOG, "the dead", "g", "u", list(range(5)), priorities=1, lease_duration=0.4, horizon=0)
        Offset.objects.filter(topic="u").update(claimed_to=offset)
        consuming.start()
        wait_until(lambda: seen == [2])
        wait_until(lambda: not PartitionLease.objects.filter(holder="the dead").exists())

    def test_no_partition_is_given_up_while_a_handler_holds_one_of_its_messages(self, consuming: Consuming) -> None:
        gate, began = consuming.gate(), []

        @consuming.consumer("v", group="g")
        def hold(delivery) -> None:
            began.append(delivery.partition)
            gate.wait()

        for number in range(40):
            publish("v", number, key=str(number))
        one = consuming.start(threads=2)
        wait_until(lambda: len(began) == 2)
        consuming.start()

        def of_v() -> set[int]:
            leases = PartitionLease.objects.filter(topic="v", holder=one.name)
            return set(leases.values_list("partition", flat=True))

        wait_until(lambda: len(of_v()) < 5)
        assert set(began[:2]) <= of_v()
        gate.set()

    def test_what_others_show_a_heartbeat_for_and_do_not_take_is_served_all_the_same(
        self, consuming: Consuming, settings
    ) -> None:
        settings.SQLQUEUE = {**settings.SQLQUEUE, "LEASE_DURATION": 1.0, "HEARTBEAT_INTERVAL": 0.3}
        handled: set[int] = set()
        consuming.consumer("w", lambda delivery: handled.add(delivery.partition), group="g")
        for ghost in ("ghost", "another ghost"):
            heartbeat.beat(LOG, ghost, [("g", "t"), ("g", "w")], 300)
        for key in keys_of_partitions(5):
            publish("w", 1, key=key)
        one = consuming.start()
        wait_until(lambda: handled == set(range(5)))
        wait_until(lambda: self.shares(one) == [5])
        two = consuming.start()
        wait_until(lambda: self.shares(two) != [0], message="the excess is not given up to one who lives")
        wait_until(lambda: sum(self.shares(one, two)) == 5)

    def test_a_lease_whose_holder_has_forgotten_it_is_served_again(self, consuming: Consuming) -> None:
        one, two = consuming.start(), consuming.start()
        wait_until(lambda: self.shares(one, two) == [2, 3])
        fuller, other = (one, two) if len(held_by(one.name)) == 3 else (two, one)
        forgotten = min(held_by(other.name))
        # As if the fuller one had acquired it, and had never heard of that: it renews what it holds, known or not.
        lease = PartitionLease.objects.filter(topic="t", partition=forgotten)
        lease.update(holder=fuller.name, fencing_token=F("fencing_token") + 1)
        Offset.objects.filter(topic="t", partition=forgotten).update(fencing_token=F("fencing_token") + 1)
        offset = publish("t", 1, key=keys_of_partitions(5)[forgotten]).offset
        wait_until(lambda: Offset.objects.get(topic="t", partition=forgotten).offset_acked >= (offset or 0))
        assert self.shares(one, two) == [2, 3]
