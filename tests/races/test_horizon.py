"""No message is ever skipped, whatever the order in which publishers commit."""

import itertools
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from django.db import IntegrityError, connection, connections, transaction
from pytest_django import Settings

from sqlqueue import publish
from sqlqueue.database import insert_sql
from sqlqueue.database.gate import insert_many, insert_new
from sqlqueue.database.horizon import Horizon, highest_offset
from sqlqueue.database.insert_sql import LogRow, Stored
from sqlqueue.exceptions import HorizonUnknown
from sqlqueue.models import Message, PublishGate
from tests.logs import LOG
from tests.progress import let_a_round_pass, wait_until_settled
from tests.races.publishers import (
    TOPIC,
    NaiveReader,
    Publishers,
    Write,
    by_plain_sql,
    in_bulk,
    one_by_one,
    roll_back_to_a_savepoint,
)
from tests.servers.session import isolation_level, isolation_option, wait_for_locks
from tests.subscribers import Handled, RunningSubscriber, consumer
from tests.transactions import OpenTransaction

pytestmark = pytest.mark.django_db(transaction=True)

GATED = pytest.mark.database("mariadb", "mysql", "postgresql")
PATHS = {
    one_by_one: ("sqlqueue_message", "offset"),
    in_bulk: ("sqlqueue_message", "offset"),
    by_plain_sql: ("sqlqueue_scheduled_message", "id"),
}


@pytest.fixture(autouse=True)
def quick(settings: Settings) -> None:
    settings.SQLQUEUE = {
        "TOPICS": {TOPIC: {"partitions": 4}},
        "LEASE_DURATION": 60,
        "HEARTBEAT_INTERVAL": 2,
        "BALANCE_INTERVAL": 0.2,
        "IDLE_POLL_INTERVAL": 0.05,
        "FLUSH_INTERVAL": 0.2,
    }


@pytest.fixture
def isolation(request: pytest.FixtureRequest) -> Iterator[str]:
    """The isolation level of every connection that is opened during the test."""
    options = connections.settings["default"]["OPTIONS"]
    before = options.get("isolation_level")
    connections.close_all()
    options["isolation_level"] = isolation_option(request.param)
    with transaction.atomic():
        assert isolation_level() == request.param
    yield request.param
    connections.close_all()
    options["isolation_level"] = before
    if before is None:
        del options["isolation_level"]


def deliver_all(write: Write, *, pause: float, enough: Callable[[Publishers], object]) -> None:
    """Run publishers and a subscriber side by side until `enough` has happened.

    Asserts that what was committed is what was delivered, each message once.
    """
    handled = Handled()
    table, place = PATHS[write]
    with RunningSubscriber(consumer(TOPIC, handled, ordering="none"), threads=2):
        with NaiveReader(table, connection.ops.quote_name(place)) as naive:
            publishers = Publishers(write, naive, enough, threads=8, seconds=1.5, pause=pause)
            publishers.run()
        wait_until_settled(TOPIC, "default")
        rounds = let_a_round_pass(TOPIC, "default")
    counts = handled.counts
    lost = publishers.committed - set(counts)
    assert not lost, f"{len(lost)} of {len(publishers.committed)} committed messages are lost: {sorted(lost)[:10]}"
    assert set(counts) == publishers.committed | rounds, "what was rolled back was delivered"
    assert set(counts.values()) == {1}
    assert enough(publishers), f"the publishers were too tame: {publishers.happened}, {len(publishers.overtaken)}"


@GATED
@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"], indirect=True)
@pytest.mark.parametrize("write", PATHS, ids=lambda write: write.__name__)
def test_eight_slow_publishers_lose_nothing_where_a_naive_reader_does(write: Write, isolation: str) -> None:
    deliver_all(
        write,
        pause=0.02,
        enough=lambda had: len(had.committed) > 500 and had.happened["rollbacks"] > 5 and had.overtaken,
    )


@pytest.mark.database("sqlite")
@pytest.mark.parametrize("write", PATHS, ids=lambda write: write.__name__)
def test_eight_publishers_that_wait_for_each_other_lose_nothing(write: Write) -> None:
    deliver_all(write, pause=0.002, enough=lambda had: len(had.committed) > 50 and had.happened["rollbacks"] > 5)


# -- the horizon itself ------------------------------------------------------------------------------------------------


def new_id() -> str:
    """Return an id that no earlier test has used: one that was just deleted stays in InnoDB's index for a while, and a
    transaction that uses it again locks its neighbourhood."""
    return uuid.uuid4().hex


def probe_often(horizon: Horizon) -> int:
    """Probe as a busy consumer does; return the horizon."""
    for _ in range(20):
        horizon.probe(highest_offset(LOG))
    return horizon.value


@GATED
def test_it_does_not_pass_the_offset_of_an_open_transaction() -> None:
    first = publish(TOPIC, 1).offset
    horizon = Horizon(LOG)
    with OpenTransaction() as open_transaction:
        late = open_transaction.do(lambda: publish(TOPIC, 2)).offset
        for _ in range(5):
            publish(TOPIC, 3)
            assert probe_often(horizon) < late
        with pytest.raises(HorizonUnknown):
            Horizon(LOG).wait(timeout=0)
        open_transaction.commit()
    last = publish(TOPIC, 4).offset
    assert horizon.wait() >= last > late > first


@GATED
def test_after_what_another_one_has_found_it_waits_for_the_publishers_of_its_next_candidate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not for those of the candidate that it had before."""
    slots = itertools.count()
    monkeypatch.setattr(insert_sql, "slot", lambda: next(slots))
    horizon, other = Horizon(LOG), Horizon(LOG)
    with OpenTransaction() as before, OpenTransaction() as now:
        before.do(lambda: publish(TOPIC, 1))
        candidate = publish(TOPIC, 2).offset
        assert probe_often(horizon) < candidate
        before.commit()
        assert probe_often(other) == candidate
        late = now.do(lambda: publish(TOPIC, 3)).offset
        highest = publish(TOPIC, 4).offset
        horizon.learn(candidate, highest)
        assert horizon.value == candidate
        assert probe_often(horizon) < late
        now.commit()
    assert horizon.wait() >= highest


@GATED
def test_it_takes_over_nothing_beyond_the_logs_end() -> None:
    """A restore may have brought back an earlier log."""
    offset = publish(TOPIC, 1).offset
    horizon = Horizon(LOG)
    horizon.learn(offset + 100, offset)
    assert horizon.value == offset


@GATED
def test_it_does_not_pass_what_follows_a_savepoint_that_was_rolled_back() -> None:
    horizon = Horizon(LOG)
    with OpenTransaction() as open_transaction:
        kept = open_transaction.do(publish_after_a_savepoint)
        publish(TOPIC, "later")
        assert probe_often(horizon) < kept
        open_transaction.commit()


@GATED
def test_it_does_not_pass_what_precedes_a_savepoint_that_was_rolled_back() -> None:
    """Rolling back to the savepoint gives up nothing that was held before it."""
    horizon = Horizon(LOG)
    with OpenTransaction() as open_transaction:
        kept = open_transaction.do(lambda: one_by_one([new_id()]))
        open_transaction.do(lambda: roll_back_to_a_savepoint(one_by_one, [new_id()]))
        publish(TOPIC, "later")
        assert probe_often(horizon) < kept
        open_transaction.commit()


@GATED
def test_it_does_not_pass_what_precedes_an_id_that_is_known() -> None:
    """What finds out that a message is there already gives up nothing either."""
    known = new_id()
    publish(TOPIC, "known", id=known)
    horizon = Horizon(LOG)
    with OpenTransaction() as open_transaction:
        kept = open_transaction.do(lambda: publish(TOPIC, "kept")).offset
        assert not open_transaction.do(lambda: publish(TOPIC, "again", id=known)).created
        publish(TOPIC, "later")
        assert probe_often(horizon) < kept
        open_transaction.commit()


@GATED
@pytest.mark.parametrize("insert", [insert_many, insert_new])
def test_it_does_not_pass_a_copy_that_the_server_has_made(insert: Callable[..., object]) -> None:
    original = publish(TOPIC, 1).offset
    copy = new_id()
    row = LogRow(TOPIC, 0, 0, "", copy, Stored("sqlqueue_message", "offset", original or 0), None, "")
    horizon = Horizon(LOG)
    with OpenTransaction() as open_transaction:
        open_transaction.do(lambda: insert(LOG, [row]))
        later = publish(TOPIC, "later").offset
        assert probe_often(horizon) < later
        open_transaction.commit()
    assert horizon.wait() >= later
    assert Message.objects.get(message_id=copy).payload == 1


def publish_after_a_savepoint() -> int:
    """Publish, roll back to before that, and publish again; return the offset that stays."""
    roll_back_to_a_savepoint(one_by_one, [new_id()])
    return one_by_one([new_id()])


@GATED
def test_a_candidate_waits_for_the_transactions_before_it_only(monkeypatch: pytest.MonkeyPatch) -> None:
    horizon = Horizon(LOG)
    slots = itertools.count()
    monkeypatch.setattr(insert_sql, "slot", lambda: next(slots))  # two that share a slot are waited for together
    with OpenTransaction() as before, OpenTransaction() as after:
        before.do(lambda: publish(TOPIC, "before"))
        candidate = publish(TOPIC, "candidate").offset
        assert probe_often(horizon) < candidate
        later = after.do(lambda: publish(TOPIC, "after")).offset
        publish(TOPIC, "last")
        before.commit()
        reached = probe_often(horizon)
        assert candidate <= reached < later, "it waits for a transaction that began to publish after the candidate"
        after.commit()
    assert horizon.wait() == highest_offset(LOG)


@GATED
def test_a_consumer_that_froze_after_a_probe_holds_up_no_publisher(monkeypatch: pytest.MonkeyPatch) -> None:
    publish(TOPIC, 0)
    with ThreadPoolExecutor(1) as consumer_thread, OpenTransaction() as publisher:
        consumer_thread.submit(lambda: probe_often(Horizon(LOG))).result()
        publisher.do(lambda: wait_for_locks(1))
        for slot in range(insert_sql.SLOTS):
            monkeypatch.setattr(insert_sql, "slot", lambda slot=slot: slot)
            publisher.do(lambda: publish(TOPIC, 1))
        publisher.commit()
        consumer_thread.submit(connections.close_all).result()


@GATED
def test_a_probe_never_waits_for_publishers(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_locks(1)
    horizon = Horizon(LOG)
    with OpenTransaction() as publisher:
        for slot in range(insert_sql.SLOTS):
            monkeypatch.setattr(insert_sql, "slot", lambda slot=slot: slot)
            publisher.do(lambda: publish(TOPIC, 1))
        monkeypatch.undo()
        publish(TOPIC, 2)
        assert probe_often(horizon) == 0
        publisher.commit()
    assert horizon.wait() == highest_offset(LOG)
    connection.close()


@pytest.mark.database("mariadb", "mysql")
def test_more_publishers_than_slots_are_all_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(insert_sql, "SLOTS", 2)
    horizon = Horizon(LOG)
    with ExitStack() as stack:
        publishers = [stack.enter_context(OpenTransaction()) for _ in range(5)]
        offsets = [publisher.do(lambda: publish(TOPIC, "open")).offset for publisher in publishers]
        publish(TOPIC, "last")
        for publisher in publishers:
            assert probe_often(horizon) < min(offsets)
            publisher.commit()
        assert horizon.wait() == highest_offset(LOG) > max(offsets)
    assert Message.objects.count() == 6


@pytest.mark.database("mariadb", "mysql")
def test_a_missing_gate_refuses_the_message_rather_than_risk_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(insert_sql, "slot", lambda: 7)
    PublishGate.objects.filter(slot=7).delete()
    with pytest.raises(IntegrityError):
        publish(TOPIC, 1)
    assert highest_offset(LOG) == 0
    monkeypatch.setattr(insert_sql, "slot", lambda: 8)
    original = publish(TOPIC, 1).offset
    monkeypatch.setattr(insert_sql, "slot", lambda: 7)
    copy = LogRow(TOPIC, 0, 0, "", "copy", Stored("sqlqueue_message", "offset", original or 0), None, "")
    with pytest.raises(IntegrityError):
        insert_many(LOG, [copy])
