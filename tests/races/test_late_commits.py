"""A message whose transaction commits after its successors' is delivered all the same, and nothing else twice."""

import threading
import uuid

import pytest
from django.db import connection, connections
from pytest_django import Settings

from sqlqueue import publish
from sqlqueue.database.horizon import Horizon, highest_offset
from sqlqueue.log.collect import collect
from sqlqueue.models import DeliveryState, Offset
from sqlqueue.testing import published
from tests.logs import LOG
from tests.processes import wait_until
from tests.progress import let_a_round_pass, settled, wait_until_settled
from tests.subscribers import Handled, RunningSubscriber, consumer
from tests.transactions import OpenTransaction

pytestmark = pytest.mark.django_db(transaction=True)

OVERTAKES = pytest.mark.database("mariadb", "mysql", "postgresql")  # SQLite lets one transaction write at a time


@pytest.fixture
def topic(settings: Settings) -> str:
    """A topic that is collected as soon as it is settled, and quick subscribers.

    Its name is new in each test: an id that was deleted a moment ago is still in InnoDB's unique index, and
    publishing it again locks its neighbourhood.
    """
    name = f"late-{uuid.uuid4().hex}"
    settings.SQLQUEUE = {
        "TOPICS": {name: {"partitions": 2, "retention": 0}},
        "LEASE_DURATION": 60,
        "HEARTBEAT_INTERVAL": 1,
        "BALANCE_INTERVAL": 0.1,
        "IDLE_POLL_INTERVAL": 0.05,
        "FLUSH_INTERVAL": 0.1,
        "COLLECT_INTERVAL": 3600,
    }
    return name


def collect_now() -> int:
    """Run a collection; return how many messages it has deleted."""
    horizon = Horizon(LOG)
    for _ in range(5):
        horizon.probe(highest_offset(LOG))
    return collect(LOG, horizon).messages


def insert_by_plain_sql(topic: str, name: str) -> None:
    """Publish as any language can."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO sqlqueue_scheduled_message (topic, partition_key, message_id, payload)"
            " VALUES (%s, %s, %s, %s)",
            [topic, "key 1", name, "{}"],
        )


@OVERTAKES
def test_a_late_commit_is_delivered_although_everything_after_it_was_settled_and_collected(topic: str) -> None:
    first, second = Handled(), Handled()
    consumers = consumer(topic, first, group="first"), consumer(topic, second, group="second", ordering="none")
    for number in range(10):
        publish(topic, number, key=f"key {number}", id=f"before {number}")
    with RunningSubscriber(*consumers), OpenTransaction() as open_transaction:
        for group in ("first", "second"):
            wait_until_settled(topic, group)
        late = open_transaction.do(lambda: publish(topic, "late", key="key 1", id="late"))
        early = publish(topic, "early", key="key 1", id="early")
        for number in range(10):
            publish(topic, number, key=f"key {number}", id=f"after {number}")
        assert early.offset > late.offset

        above = DeliveryState.objects.filter(message_offset__gt=late.offset, acked=True)
        wait_until(lambda: above.count() == 22, message=lambda: f"{above.count()} acks are stored")
        # By this or by the subscriber's own collector, which looks once when it starts.
        wait_until(lambda: collect_now() == 0 and len(published(topic)) == 11, message="what was settled is kept")
        assert collect_now() == 0
        assert len(published(topic)) == 11
        assert max(Offset.objects.values_list("position", flat=True)) < late.offset
        assert first.counts["late"] == second.counts["late"] == 0

        open_transaction.commit()
        for handled in (first, second):
            wait_until(lambda handled=handled: handled.counts["late"], message="the late message is lost")
        let_a_round_pass(topic, "first", "second")
    for handled in (first, second):
        assert set(handled.counts.values()) == {1}
        assert len(handled.counts) == 24
    assert collect_now() == 14
    assert not published(topic)


@OVERTAKES
def test_a_late_commit_is_delivered_to_a_successor_and_what_was_settled_is_not(topic: str) -> None:
    before, after = Handled(), Handled()
    with OpenTransaction() as open_transaction:
        late = open_transaction.do(lambda: publish(topic, "late", key="key 1", id="late"))
        with RunningSubscriber(consumer(topic, before)):
            for number in range(10):
                publish(topic, number, key=f"key {number}", id=f"after {number}")
            wait_until(lambda: len(before.counts) == 10)
        assert collect_now() == 0
        with RunningSubscriber(consumer(topic, after)):
            publish(topic, "more", key="key 1", id="more")
            wait_until(lambda: after.counts["more"])
            assert max(Offset.objects.values_list("position", flat=True)) < late.offset
            open_transaction.commit()
            wait_until(lambda: after.counts["late"], message="the late message is lost")
            rounds = let_a_round_pass(topic, "default")
    assert before.counts == {f"after {number}": 1 for number in range(10)}
    assert after.counts == dict.fromkeys(["late", "more", *rounds], 1)


@OVERTAKES
def test_a_transaction_that_rolls_back_late_holds_nothing_back_for_good(topic: str) -> None:
    handled = Handled()
    with RunningSubscriber(consumer(topic, handled)), OpenTransaction() as open_transaction:
        never = open_transaction.do(lambda: publish(topic, "never", key="key 1", id="never"))
        last = publish(topic, "early", key="key 1", id="early")
        wait_until(lambda: handled.counts["early"])
        assert not settled(topic, "default")
        open_transaction.rollback()
        wait_until_settled(topic, "default")
    assert handled.counts == {"early": 1}
    assert (
        Offset.objects.get(position__gte=never.offset, partition=handled.deliveries[0].partition).position
        >= last.offset
    )


@OVERTAKES
def test_an_open_transaction_that_has_inserted_by_plain_sql_holds_up_no_other_message(topic: str) -> None:
    handled = Handled()
    with RunningSubscriber(consumer(topic, handled)), OpenTransaction() as open_transaction:
        open_transaction.do(lambda: insert_by_plain_sql(topic, "late"))
        insert_by_plain_sql(topic, "early")
        publish(topic, "delayed", key="key 1", id="delayed", delay=0)
        wait_until(lambda: len(handled.counts) == 2, 30, message="the scheduler waits for the open transaction")
        open_transaction.commit()
        wait_until(lambda: handled.counts["late"], message="the late message is lost")
        rounds = let_a_round_pass(topic, "default")
    assert handled.counts == dict.fromkeys(["late", "early", "delayed", *rounds], 1)


@pytest.mark.database("sqlite")
def test_on_sqlite_no_message_overtakes_a_transaction_that_has_published(topic: str) -> None:
    handled = Handled()
    begun = threading.Event()
    offsets: list[int | None] = []

    def publish_next() -> None:
        begun.set()
        offsets.append(publish(topic, "next", key="key 1", id="next").offset)
        connections.close_all()

    publish(topic, "first", key="key 1", id="first")
    with RunningSubscriber(consumer(topic, handled)):
        wait_until_settled(topic, "default")
    with OpenTransaction() as open_transaction:
        late = open_transaction.do(lambda: publish(topic, "late", key="key 1", id="late"))
        thread = threading.Thread(target=publish_next)
        thread.start()
        begun.wait()
        assert highest_offset(LOG) < late.offset
        open_transaction.commit()
        thread.join()
    assert offsets[0] is not None
    assert offsets[0] > late.offset
    with RunningSubscriber(consumer(topic, handled)):
        rounds = let_a_round_pass(topic, "default")
    assert handled.counts == dict.fromkeys(["first", "late", "next", *rounds], 1)
    assert handled.ids_by_key()["key 1"] == ["first", "late", "next"]
