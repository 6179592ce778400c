"""A topic's messages go before their retention is over; no group waits for what is gone, or loses anything else."""

from typing import Any

import pytest
from django.db import connection, transaction

from sqlqueue import ConfigurationError, Delivery, NewMessage, Postpone, Reject, Retry, publish, publish_many
from sqlqueue.database.horizon import Horizon
from sqlqueue.database.sequence import look
from sqlqueue.database.server_identity import ServerIdentity
from sqlqueue.log import collect as collecting
from sqlqueue.log.collect import collect
from sqlqueue.log.groups import register
from sqlqueue.models import BlockedRange, DeliveryState, Message, Offset, PartitionLease, ScheduledMessage, Topic
from sqlqueue.operations.messages import delete
from sqlqueue.operations.move import settle_below
from sqlqueue.operations.replay_requests import request_replay
from sqlqueue.operations.requests import carry_out
from sqlqueue.operations.topics import PurgePreview, delete_purged, preview, purge
from sqlqueue.stats import counting
from tests.consuming import QUICK, Consuming, offset_row
from tests.logs import LOG
from tests.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _one_partition(consuming: Consuming, settings: Any) -> None:
    settings.SQLQUEUE = {**QUICK, "TOPICS": {"t": {"partitions": 1}, "wide": {"partitions": 3}}}


def collect_all() -> None:
    horizon = Horizon(LOG)
    horizon.wait()
    collect(LOG, horizon)


def left(topic: str = "t") -> list[Any]:
    return list(Message.objects.filter(topic=topic).order_by("offset").values_list("payload", flat=True))


def offset_of(payload: Any) -> int:
    return int(Message.objects.get(topic="t", payload=payload).offset)


def lag(group: str) -> int:
    return Message.objects.filter(topic="t", offset__gt=offset_row("t", group).offset_acked).count()


class TestOfWhatIsSettled:
    """Nothing that a group has yet to do goes."""

    def test_goes_at_once_and_nothing_else_does(self, consuming: Consuming) -> None:
        consuming.consumer("t", lambda delivery: None, group="quick")
        publish_many("t", range(3))
        consuming.drain()
        register(LOG, "slow", "t")
        assert preview(LOG, "t") == PurgePreview(offset_of(2), 3, {"quick": 0, "slow": 3}, False)
        assert purge(LOG, "t").skipped == []
        assert delete_purged(LOG, "t") == (0, False)
        assert left() == [0, 1, 2]

        seen: list[Any] = []
        consuming.consumer("t", lambda delivery: seen.append(delivery.payload), group="slow")
        publish("t", 3)
        consuming.drain()
        assert seen == [0, 1, 2, 3]
        collect_all()  # what was settled later goes with the next collection
        assert left() == [3]  # that came after the purge, and is retained

    def test_up_to_an_offset(self, consuming: Consuming) -> None:
        consuming.consumer("t", lambda delivery: None)
        publish_many("t", range(5))
        consuming.drain()
        through = offset_of(2)
        assert preview(LOG, "t", through).messages == 3
        assert purge(LOG, "t", through=through).through == through
        assert delete_purged(LOG, "t") == (3, False)
        assert left() == [3, 4]
        purge(LOG, "t", through=1)
        assert Topic.objects.get(name="t").purged_to == through  # what was released stays so

    def test_of_a_topic_that_keeps_its_messages_for_ever(self, consuming: Consuming) -> None:
        publish_many("t", range(5))
        Topic.objects.update(retention=None)
        collect_all()
        assert len(left()) == 5
        purge(LOG, "t")
        publish("t", 5)
        collect_all()
        assert left() == [5]

    def test_past_the_bound_of_one_call(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(collecting, "BATCH", 2)
        publish_many("t", range(5))
        purge(LOG, "t")
        assert delete_purged(LOG, "t", batches=1) == (2, True)
        assert delete_purged(LOG, "t", batches=5) == (3, False)

    def test_leaves_what_is_scheduled_and_other_topics(self) -> None:
        publish("t", 1)
        publish("t", 2, delay=60)
        publish("wide", 3)
        purge(LOG, "t", unsettled=True)
        delete_purged(LOG, "t")
        assert (left(), left("wide"), ScheduledMessage.objects.count()) == ([], [3], 1)


class Stuck:
    """Fails some for an hour, postpones some for an hour."""

    def __init__(self) -> None:
        self.broken = True
        self.seen: list[Any] = []

    def __call__(self, delivery: Delivery) -> None:
        kind = str(delivery.payload)[0]
        if self.broken and kind == "f":
            raise Retry("no", delay=3600)
        if self.broken and kind == "p":
            raise Postpone(delay=3600)
        if self.broken and kind == "d":
            raise Reject("no")
        self.seen.append(delivery.payload)


class TestOfWhatIsNotSettled:
    """Groups are moved over what goes."""

    def test_failing_postponed_and_blocked_ones_are_counted_and_forgotten(self, consuming: Consuming) -> None:
        stuck = Stuck()
        consuming.consumer("t", stuck, group="g")
        consuming.consumer("t", lambda delivery: None, group="other")
        publish_many("t", [NewMessage(p, key=k) for p, k in [("f1", "a"), ("a2", "a"), ("p3", "b"), ("x4", "c")]])
        consuming.drain()
        assert BlockedRange.objects.filter(consumer_group="g").exists()
        found = preview(LOG, "t")
        assert (found.messages, found.unsettled, found.estimated) == (4, {"g": 3, "other": 0}, True)
        assert purge(LOG, "t", unsettled=True).skipped == ["g"]
        assert delete_purged(LOG, "t") == (4, False)
        assert not DeliveryState.objects.exists()
        assert not BlockedRange.objects.exists()
        assert [lag(group) for group in ("g", "other")] == [0, 0]
        stuck.broken = False
        publish_many("t", [NewMessage(p, key=k) for p, k in [("f5", "a"), ("p6", "b")]])
        consuming.drain()
        assert stuck.seen == ["x4", "f5", "p6"]
        assert not DeliveryState.objects.exists()

    def test_what_stands_above_is_kept(self, consuming: Consuming) -> None:
        stuck = Stuck()
        consuming.consumer("t", stuck, group="g")
        publish_many("t", [NewMessage(f"f{n}", key="a" if n < 4 else "b") for n in range(6)])
        consuming.drain()
        through = offset_of("f1")
        purge(LOG, "t", through=through, unsettled=True)
        delete_purged(LOG, "t")
        assert left() == ["f2", "f3", "f4", "f5"]
        assert offset_row("t", "g").offset_acked == through
        assert preview(LOG, "t").unsettled == {"g": 4}
        stuck.broken = False
        DeliveryState.objects.all().update(invisible_until="2020-01-01T00:00:00+00:00")
        consuming.drain()
        assert sorted(stuck.seen) == ["f2", "f3", "f4", "f5"]
        assert lag("g") == 0

    def test_what_is_in_flight_is_finished_and_comes_no_more(self, consuming: Consuming) -> None:
        gate, began, ended = consuming.gate(), [], []

        @consuming.consumer("t", group="g")
        def handle(delivery: Delivery) -> None:
            began.append(delivery.payload)
            if delivery.payload == 0:
                gate.wait()
                raise Retry(delay=0)
            ended.append(delivery.payload)

        publish_many("t", [NewMessage(n, key="a") for n in range(3)])
        host = consuming.start()
        wait_until(lambda: began == [0])
        token = offset_row("t", "g").fencing_token
        assert purge(LOG, "t", unsettled=True).skipped == ["g"]
        assert offset_row("t", "g").fencing_token > token  # nothing that its owner remembers counts any more
        assert delete_purged(LOG, "t") == (3, False)
        gate.set()
        publish("t", 9, key="a")
        wait_until(lambda: ended == [9])
        assert began == [0, 9]  # neither the one in flight again, nor those read ahead of it
        wait_until(lambda: lag("g") == 0)
        host.stop()
        assert not DeliveryState.objects.exists()

    def test_what_a_crashed_process_had_in_flight_holds_nothing_back(self, consuming: Consuming) -> None:
        consuming.consumer("t", lambda delivery: None, group="g")
        publish_many("t", range(3))
        consuming.drain()
        publish_many("t", range(3, 6))
        Offset.objects.update(claimed_to=offset_of(5))  # dispatched, and never settled
        assert preview(LOG, "t").unsettled == {"g": 3}
        purge(LOG, "t", unsettled=True)
        delete_purged(LOG, "t")
        row = offset_row("t", "g")
        assert left() == []
        assert row.position == row.claimed_to == row.offset_acked

    def test_what_was_dispatched_above_is_recovered(self, consuming: Consuming) -> None:
        seen: list[Any] = []
        consuming.consumer("t", lambda delivery: seen.append(delivery.payload), group="g")
        publish("t", "first")
        consuming.drain()
        publish_many("t", range(4))
        Offset.objects.update(claimed_to=offset_of(3))
        purge(LOG, "t", through=offset_of(1), unsettled=True)
        assert offset_row("t", "g").claimed_to == offset_of(3)
        delete_purged(LOG, "t")
        consuming.drain()
        assert sorted(seen, key=str) == [2, 3, "first"]
        assert lag("g") == 0

    def test_in_partitions_that_were_never_owned(self, consuming: Consuming) -> None:
        register(LOG, "g", "wide")
        publish_many("wide", range(20))
        assert preview(LOG, "wide").unsettled == {"g": 20}
        purge(LOG, "wide", unsettled=True)
        assert delete_purged(LOG, "wide") == (20, False)
        assert preview(LOG, "wide").unsettled == {"g": 0}
        seen: list[Any] = []
        consuming.consumer("wide", lambda delivery: seen.append(delivery.payload), group="g")
        publish("wide", 99)
        consuming.drain()
        assert seen == [99]

    def test_dead_letters_stay_and_can_be_replayed(self, consuming: Consuming) -> None:
        from sqlqueue import replay

        stuck = Stuck()
        consuming.consumer("t", stuck, group="g")
        publish("t", "d1", key="a")
        consuming.drain()
        purge(LOG, "t", unsettled=True)
        delete_purged(LOG, "t")
        assert left() == []
        stuck.broken = False
        assert replay("t") == 1
        consuming.drain()
        assert stuck.seen == ["d1"]


@pytest.mark.parametrize("call", [purge, preview])
def test_what_cannot_be_purged_is_refused(call: Any) -> None:
    publish("t", 1)
    Topic.objects.create(name="t_dlq", partitions=1)
    with pytest.raises(ConfigurationError, match="there is no topic 'no'"):
        call(LOG, "no")
    with pytest.raises(ConfigurationError, match="has dead letters: discard those"):
        call(LOG, "t_dlq")


def test_groups_that_have_settled_everything_up_to_there_are_left_alone(consuming: Consuming) -> None:
    consuming.consumer("t", lambda delivery: None, group="g")
    publish_many("t", range(5))
    consuming.drain()
    last = Message.objects.latest("offset").offset
    publish_many("t", range(5))
    tokens = list(PartitionLease.objects.order_by("id").values_list("fencing_token", flat=True))
    assert purge(LOG, "t", through=last, unsettled=True).skipped == []
    assert list(PartitionLease.objects.order_by("id").values_list("fencing_token", flat=True)) == tokens
    assert purge(LOG, "t", unsettled=True).skipped == ["g"]


@pytest.mark.database("mariadb", "mysql")
def test_nothing_is_read_before_the_leases_are_locked(consuming: Consuming) -> None:
    """At REPEATABLE READ it would be as it was before owners have let go."""
    consuming.consumer("t", lambda delivery: None, group="g")
    consuming.drain()
    publish_many("t", range(5))
    before: list[str] = []

    def note(execute, sql, params, many, context):
        before.append(sql)
        return execute(sql, params, many, context)

    server = ServerIdentity(LOG)
    server.make_sure()
    with connection.execute_wrapper(note), transaction.atomic():
        assert settle_below(LOG, "g", "t", 10**6, server)
    locked = next(number for number, sql in enumerate(before) if "sqlqueue_partition_lease" in sql)
    assert [sql for sql in before[: locked + 1] if sql.startswith("SELECT") and not sql.endswith("FOR UPDATE")] == []


@pytest.mark.parametrize("way", ["purge", "delete"])
def test_a_replay_whose_trial_is_taken_out_of_the_log_has_failed(way: str, consuming: Consuming) -> None:
    dying = [True]

    def handle(delivery: Delivery) -> None:
        raise Reject("no") if dying else Postpone(delay=60)

    consuming.consumer("t", handle, group="g")
    publish_many("t", range(2))
    consuming.drain()
    dying.clear()
    replay = request_replay(LOG, "t", trial=True)
    carry_out(LOG)
    consuming.drain()
    replay.refresh_from_db()
    assert replay.state == "trial"
    if way == "purge":
        purge(LOG, "t", unsettled=True)
    else:
        assert delete(LOG, "t", [replay.trial_offset], also_unsettled=True).deleted == 1
    carry_out(LOG)
    replay.refresh_from_db()
    assert (replay.state, replay.done) == ("failed", 1)
    assert "by an operator" in replay.note


def test_offsets_that_were_purged_are_known_to_the_sequence() -> None:
    publish_many("t", range(5))
    last = purge(LOG, "t", unsettled=True).through
    delete_purged(LOG, "t")
    assert not Message.objects.exists()
    assert look(LOG).known == last


def test_an_estimate_says_that_it_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "SAMPLE", 5)
    monkeypatch.setattr(counting, "EXACT", 5)
    monkeypatch.setattr(counting, "WINDOWS", 8)
    monkeypatch.setattr(counting, "ROUNDS", 1)
    register(LOG, "g", "t")
    publish_many("t", range(100))
    found = preview(LOG, "t")
    assert found.estimated
    assert found.messages == found.unsettled["g"] == pytest.approx(100, abs=30)


def test_it_waits_for_publishers_and_spares_what_they_publish(consuming: Consuming) -> None:
    """What is not committed yet stands at or below the horizon nowhere."""
    if connection.vendor == "sqlite":
        pytest.skip("one writer at a time")
    from tests.transactions import OpenTransaction

    register(LOG, "g", "t")
    publish("t", "before")
    with OpenTransaction() as publisher:
        publisher.do(lambda: publish("t", "late"))
        publish("t", "beside")
        import threading

        done: list[Any] = []
        thread = threading.Thread(target=lambda: done.append(_purged_elsewhere()))
        thread.start()
        thread.join(0.5)
        assert not done, "the horizon was not waited for"
        publisher.commit()
        thread.join(30)
    assert done
    assert left() == []
    assert lag_of_all("g") == 0


def _purged_elsewhere() -> Any:
    from django.db import connections

    try:
        result = purge(LOG, "t", unsettled=True)
        delete_purged(LOG, "t")
        return result
    finally:
        connections.close_all()


def lag_of_all(group: str) -> int:
    return preview(LOG, "t").unsettled[group]
