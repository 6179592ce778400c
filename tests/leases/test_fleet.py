"""Balancing costs what the living subscribers and the leases that can be taken make of it, however many leases others
hold: its statements, and the rows that they examine."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from django.db import connection

from sqlqueue.consumers.background.duties import CollectorTask
from sqlqueue.database.lock_timeouts import BRIEFLY
from sqlqueue.database.server_identity import ServerIdentity
from sqlqueue.leases import heartbeat, release
from sqlqueue.leases.assignment import Balancer, Holding, LivingSubscribers
from sqlqueue.log.groups import register
from sqlqueue.models import Duty, PartitionLease, SubscriberHeartbeat
from sqlqueue.models.publish_gate import begin_duty
from sqlqueue.stats.partitions import partitions_of
from tests.consuming import Consuming
from tests.factories import now
from tests.logs import LOG
from tests.processes import wait_until
from tests.servers.session import wait_for_locks
from tests.transactions import OpenTransaction

pytestmark = pytest.mark.django_db(transaction=True)


def groups(count: int, topic: str = "t") -> list[tuple[str, str]]:
    return [(f"g{number}", topic) for number in range(count)]


def fleet(subscribers: int, group_topics: list[tuple[str, str]], partitions: int, settings) -> None:
    """Let so many subscribers, the first one called "me", hold all partitions of these groups."""
    settings.SQLQUEUE = {"PARTITIONS": partitions}
    names = ["me", *(f"s{number}" for number in range(1, subscribers))]
    for name in names:
        heartbeat.beat(LOG, name, group_topics, 300)
    for group, topic in group_topics:
        register(LOG, group, topic)
    later = now().replace(year=now().year + 1)
    for number, name in enumerate(names):
        mine = [partition for partition in range(partitions) if partition % subscribers == number]
        leases = PartitionLease.objects.filter(topic=group_topics[0][1], partition__in=mine)
        leases.update(holder=name, valid_until=later)


def holdings(group_topics: list[tuple[str, str]], partitions: int, subscribers: int) -> dict:
    return {pair: Holding(partitions, set(range(0, partitions, subscribers))) for pair in group_topics}


def recorded(act: Callable[[], object]) -> list[str]:
    """Return the statements of something, without what says on PostgreSQL that the next one does not wait."""
    statements: list[str] = []

    def record(execute, sql, params, many, context):
        if sql != BRIEFLY:
            statements.append(sql)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(record):
        act()
    return statements


def examined(act: Callable[[], object]) -> int:
    """Return how many rows MySQL reads for something."""
    before = _read()
    act()
    return _read() - before


def _read() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%%'", ())
        return sum(int(value) for name, value in cursor.fetchall() if name != "Handler_read_rnd_deleted")


class TestWhatARoundCosts:
    @pytest.mark.parametrize(("subscribers", "count"), [(2, 1), (20, 12)])
    def test_two_statements(self, settings, subscribers: int, count: int) -> None:
        fleet(subscribers, groups(count), 40, settings)
        balancer = Balancer(LOG, "me", 30.0)
        asked = holdings(groups(count), 40, subscribers)
        assert len(recorded(lambda: balancer.compare(asked, 0.0))) == 3, "and one for what the others serve"
        assert len(recorded(lambda: balancer.compare(asked, 0.0))) == 2

    def test_more_groups_than_one_statement_asks_for(self, settings, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sqlqueue.leases.assignment.GROUPS_AT_ONCE", 2)
        fleet(2, groups(5), 4, settings)
        PartitionLease.objects.filter(partition=1).update(holder="", valid_until=None)
        plans = Balancer(LOG, "me", 30.0).compare({pair: Holding(4, {0}) for pair in groups(5)}, 0.0)
        assert [set(plans[pair].take) for pair in groups(5)] == [{1}] * 5

    @pytest.mark.database("mariadb", "mysql")
    def test_what_others_hold_is_not_read(self, settings) -> None:
        rows = []
        for partitions in (200, 800):
            some = groups(3, f"with-{partitions}")
            fleet(10, some, partitions, settings)
            PartitionLease.objects.filter(holder="me").update(holder="s1")
            balancer = Balancer(LOG, "me", 30.0)
            asked = {pair: Holding(partitions, set(range(partitions))) for pair in some}
            balancer.compare(asked, 0.0)
            rows.append(examined(lambda: balancer.compare(asked, 0.0)))  # noqa: B023  called at once
        assert abs(rows[1] - rows[0]) < 20, rows

    @pytest.mark.database("mariadb", "mysql")
    def test_a_subscriber_is_a_row_whatever_number_of_groups_it_serves(self, settings) -> None:
        rows = []
        for subscribers, count in ((100, 2), (100, 12), (200, 12)):
            SubscriberHeartbeat.objects.all().delete()
            fleet(subscribers, groups(count), 1, settings)
            living = LivingSubscribers(LOG)
            living.look(groups(count))
            rows.append(examined(lambda: living.look(groups(count))))  # noqa: B023  called at once
        few, more_groups, more_subscribers = rows
        assert more_groups < 2.5 * few, rows
        assert more_subscribers < 2.5 * more_groups, rows

    @pytest.mark.database("mariadb", "mysql")
    def test_a_survey_reads_a_few_rows_for_each_lease(self, settings) -> None:
        fleet(2, groups(5), 100, settings)
        assert examined(lambda: partitions_of(LOG)) < 6 * 500

    def test_a_lease_that_is_free_or_has_expired_is_found_among_those_that_are_held(self, settings) -> None:
        fleet(2, groups(3), 30, settings)
        PartitionLease.objects.filter(partition=7, consumer_group="g1").update(holder="", valid_until=None)
        PartitionLease.objects.filter(partition=9, consumer_group="g2").update(valid_until=now() - timedelta(seconds=1))
        plans = Balancer(LOG, "me", 30.0).compare({pair: Holding(30, set(range(14))) for pair in groups(3)}, 0.0)
        free = {pair: plans[pair].take.keys() - set(range(0, 30, 2)) for pair in groups(3)}
        assert free == {("g0", "t"): set(), ("g1", "t"): set(), ("g2", "t"): set()}
        plans = Balancer(LOG, "me", 30.0).compare({pair: Holding(30, set()) for pair in groups(3)}, 0.0)
        free = {pair: plans[pair].take.keys() - set(range(0, 30, 2)) for pair in groups(3)}
        assert free == {("g0", "t"): set(), ("g1", "t"): {7}, ("g2", "t"): {9}}


class TestWhomItSharesWith:
    @pytest.fixture
    def living(self) -> LivingSubscribers:
        return LivingSubscribers(LOG)

    def seen(self, living: LivingSubscribers, *groups: str) -> list[set[str]]:
        found = living.look([(group, "t") for group in groups])
        return [set(found[group, "t"]) for group in groups]

    def test_those_of_other_groups_too(self, living: LivingSubscribers) -> None:
        heartbeat.beat(LOG, "a", [("g", "t"), ("h", "t")], 300)
        heartbeat.beat(LOG, "b", [("g", "t"), ("h", "t")], 300)
        heartbeat.beat(LOG, "c", [("h", "t")], 300)
        heartbeat.beat(LOG, "d", [("h", "another")], 300)
        assert self.seen(living, "g", "h") == [{"a", "b"}, {"a", "b", "c"}]
        heartbeat.leave(LOG, "a")
        heartbeat.beat(LOG, "b", [("g", "t"), ("h", "t")], 0)
        heartbeat.beat(LOG, "e", [("g", "t")], 300)
        assert self.seen(living, "g", "h") == [{"e"}, {"c"}]

    def test_while_nothing_changes_it_is_the_same_and_one_statement(self, living: LivingSubscribers) -> None:
        for name in ("a", "b"):
            heartbeat.beat(LOG, name, [("g", "t")], 300)
        first = living.look([("g", "t")])["g", "t"]
        for name in ("a", "b"):
            heartbeat.beat(LOG, name, [("g", "t")], 300)
        assert len(recorded(lambda: living.look([("g", "t")]))) == 1
        assert living.look([("g", "t")])["g", "t"] is first

    def test_of_a_known_kind_a_newcomer_is_one_statement(self, living: LivingSubscribers) -> None:
        heartbeat.beat(LOG, "a", [("g", "t")], 300)
        self.seen(living, "g")
        heartbeat.beat(LOG, "b", [("g", "t")], 300)
        assert len(recorded(lambda: self.seen(living, "g"))) == 1
        assert self.seen(living, "g") == [{"a", "b"}]

    def test_one_that_leaves_as_it_is_asked_for_the_others_takes_none_of_them_away(
        self, living: LivingSubscribers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The others are asked for themselves, here in several statements."""
        monkeypatch.setattr("sqlqueue.leases.assignment.AT_ONCE", 2)
        names = {"a", "b", "c", "d", "e", "f"}
        for name in names:
            heartbeat.beat(LOG, name, [("g", "t"), ("h", "t")], 300)
        read, asked = LivingSubscribers._read, []

        def leaves_first(self: LivingSubscribers, names) -> dict:
            asked.extend(names)
            if len(asked) == 1:
                heartbeat.leave(LOG, asked[0])
            return read(self, names)

        monkeypatch.setattr(LivingSubscribers, "_read", leaves_first)
        assert self.seen(living, "g") == [names - {asked[0]}]

    def test_what_is_served_decides_the_digest(self) -> None:
        one = heartbeat.digest_of([("g", "t"), ("h", "t")])
        assert one == heartbeat.digest_of([("h", "t"), ("g", "t")])
        others = [[("g", "t")], [("t", "g"), ("h", "t")]]
        assert len({one, *map(heartbeat.digest_of, others)}) == 3


class TestDuties:
    def test_one_of_many_begins_it(self) -> None:
        began = []
        barrier = threading.Barrier(4)

        def ask() -> None:
            try:
                barrier.wait()
                began.append(begin_duty(LOG, "some", 60.0))
            finally:
                connection.close()

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(began) == [False, False, False, True]

    def test_who_has_seen_that_it_is_due_may_be_too_late(self) -> None:
        begin_duty(LOG, "some", 60.0)
        long_ago = now().replace(year=now().year - 1)
        Duty.objects.update(began_at=long_ago)

        def another_begins(execute, sql, params, many, context):
            found = execute(sql, params, many, context)
            if sql.startswith("SELECT"):
                assert Duty.objects.filter(began_at=long_ago).update(began_at=now()) <= 1
            return found

        with connection.execute_wrapper(another_begins):
            assert not begin_duty(LOG, "some", 60.0)
        assert not begin_duty(LOG, "some", 60.0)

    @pytest.mark.database("mariadb", "mysql", "postgresql")
    def test_nobody_waits_for_the_one_that_begins_it(self) -> None:
        begin_duty(LOG, "some", 60.0)
        Duty.objects.update(began_at=now().replace(year=now().year - 1))
        with OpenTransaction() as beginning:
            beginning.do(lambda: Duty.objects.filter(name="some").update(began_at=now()))
            assert not begin_duty(LOG, "some", 60.0)
        assert begin_duty(LOG, "some", 60.0)  # which has failed

    def test_it_is_due_again_after_its_rest_and_when_the_clock_was_set_back(self) -> None:
        assert begin_duty(LOG, "some", 60.0)
        assert not begin_duty(LOG, "some", 60.0)
        assert begin_duty(LOG, "some", 0.0)
        Duty.objects.update(began_at=now().replace(year=now().year + 1))
        assert begin_duty(LOG, "some", 60.0)
        assert not begin_duty(LOG, "some", 60.0)
        assert begin_duty(LOG, "another", 60.0)

    def test_who_need_not_collect_asks_once(self) -> None:
        CollectorTask(LOG, 60.0, 30.0).run_once()
        assert len(recorded(CollectorTask(LOG, 60.0, 30.0).run_once)) == 1


class TestRenewing:
    def test_more_leases_than_one_statement_renews(self, settings, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sqlqueue.leases.release.RENEWED_AT_ONCE", 4)
        fleet(2, groups(1), 22, settings)
        PartitionLease.objects.update(valid_until=now())
        server = ServerIdentity(LOG)
        assert release.renew(LOG, "me", 300.0, server) == 11
        ended = PartitionLease.objects.filter(valid_until__lte=now())
        assert set(ended.values_list("holder", flat=True)) == {"s1"}
        assert ended.count() == 11

    @pytest.mark.database("mariadb", "mysql")
    def test_it_waits_for_no_lease_that_is_being_acquired(self, settings) -> None:
        """Not even of its own subscriber: by the index of the holders it would, and deadlock with the acquiring."""
        fleet(2, groups(1), 6, settings)
        with OpenTransaction() as acquiring:
            acquiring.do(lambda: PartitionLease.objects.filter(partition=1).update(holder="me", fencing_token=7))
            wait_for_locks(1)
            assert release.renew(LOG, "me", 300.0) == 3


@pytest.fixture
def one(consuming: Consuming, settings) -> Iterator:
    settings.SQLQUEUE = {"PARTITIONS": 4, "BALANCE_INTERVAL": 60.0, "WAKE": False}
    consuming.consumer("t", lambda delivery: None, group="g")
    register(LOG, "g", "t")
    subscriber = consuming.subscriber(background_tasks=False)
    subscriber.start()
    yield subscriber
    subscriber.close()


def test_below_its_share_it_looks_again_sooner_but_less_and_less_so(one) -> None:
    heartbeat.beat(LOG, "greedy", [("g", "t")], 300)
    greedy = PartitionLease.objects.filter(topic="t")
    greedy.update(holder="greedy", valid_until=now().replace(year=now().year + 1))
    pauses = []
    for _ in range(5):
        one.balance()
        pauses.append(one._balance_pause)
    assert pauses == [15.0, 30.0, 60.0, 60.0, 60.0]
    greedy.filter(partition=0).update(holder="", valid_until=None)
    one.balance()
    assert one._balance_pause == 15.0, "it has got one of two"
    greedy.filter(partition=1).update(holder="", valid_until=None)
    one.balance()
    assert (one._balance_pause, one.ownership.lacks) == (60.0, False)


def test_shares_that_become_smaller_while_many_leases_are_acquired_are_kept_to(
    consuming: Consuming, settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.SQLQUEUE = {"PARTITIONS": 40, "BALANCE_INTERVAL": 60.0, "WAKE": False}
    monkeypatch.setattr("sqlqueue.consumers.engine.ownership.AT_ONCE", 10)
    consuming.consumer("t", lambda delivery: None, group="g")
    register(LOG, "g", "t")
    subscriber = consuming.subscriber(background_tasks=False)
    subscriber.start()
    subscriber.ownership.progress = lambda: heartbeat.beat(LOG, "another", [("g", "t")], 300)
    try:
        subscriber.balance()
        assert PartitionLease.objects.filter(holder=subscriber.name).count() == 20
    finally:
        subscriber.close()
    wait_until(lambda: not PartitionLease.objects.filter(holder=subscriber.name).exists())


def test_of_those_that_serve_the_same_one_is_not_in_reserve(settings) -> None:
    """They look for the same work: one as often as it has to be, the others rarely."""
    fleet(3, groups(2), 6, settings)
    heartbeat.beat(LOG, "a", groups(1), 300)
    everyone = {name: Balancer(LOG, name, 30.0) for name in ("a", "me", "s1", "s2")}

    def in_reserve() -> set[str]:
        for balancer in everyone.values():
            balancer.compare(holdings(groups(1), 6, 3), 0.0)
        return {name for name, balancer in everyone.items() if balancer.in_reserve}

    assert in_reserve() == {"s1", "s2"}
    heartbeat.leave(LOG, "me")
    everyone.pop("me")
    assert in_reserve() == {"s2"}
