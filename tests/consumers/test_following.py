"""A process that keeps up with the log reads what is new with one statement, for all of its groups and partitions."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from sqlqueue import Delivery, NewMessage, publish, publish_many
from sqlqueue.consumers.declare.registry import build
from sqlqueue.consumers.engine import log_end as following
from sqlqueue.consumers.engine.log_end import MOST_SKIPPED, NEWEST_AT_ONCE, USEFUL, Following, Trials
from sqlqueue.consumers.engine.subscriber import Subscriber
from sqlqueue.consumers.handlers.inline import InlinePool
from sqlqueue.core.keys import partition_of
from sqlqueue.core.partition.ref import PartitionRef
from sqlqueue.core.partition.window import Read
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.database.server_identity import ServerIdentity
from sqlqueue.log.fetch import HEAVY
from sqlqueue.log.groups import register
from sqlqueue.models import Message, Offset, PartitionLease
from tests.consumers.test_many_subscribers import publish_behind_a_gap
from tests.consumers.test_pace import counted
from tests.consumers.test_reading import OpenPublish
from tests.factories import MessageValueFactory
from tests.logs import LOG

pytestmark = pytest.mark.django_db(transaction=True)

PARTITIONS = 4
Host = Callable[..., Subscriber]


@pytest.fixture
def seen() -> list[tuple[str, Any]]:
    """What the groups have been given, with their names."""
    return []


@pytest.fixture
def host(settings: object, seen: list[tuple[str, Any]]) -> Iterator[Host]:
    """Return what hosts groups with these options; each has handled all that there was."""
    settings.SQLQUEUE = {
        "TOPICS": {"t": {"partitions": PARTITIONS}},
        "WAKE": False,
        "LEASE_DURATION": 3600,
        "BALANCE_INTERVAL": 1800,
        "POLL_INTERVAL": 20,
        "IDLE_POLL_INTERVAL": 20,
    }
    started: list[Subscriber] = []

    def hosting(*groups: str, partitions: set[int] | None = None, **options: Any) -> Subscriber:
        publish_many("t", [NewMessage(number, key=f"k{number}") for number in range(50)])

        def handler(delivery: Delivery) -> None:
            seen.append((delivery.group, delivery.payload))

        consumers = [replace(build("t", {"group": name, **options}), handler=handler) for name in groups]
        if partitions is not None:
            for name in groups:
                register(LOG, name, "t")
            others = PartitionLease.objects.exclude(partition__in=partitions)
            others.update(holder="another", valid_until=DatabaseNow() + timedelta(hours=1))
        subscriber = Subscriber(consumers, background_tasks=False, pool=InlinePool)
        subscriber.start()
        started.append(subscriber)
        go_on(subscriber)
        seen.clear()
        return subscriber

    yield hosting
    for subscriber in started:
        subscriber.stop(timeout=0.0)
        subscriber.close()


def go_on(subscriber: Subscriber) -> list[str]:
    """Let it work until it has nothing to do, as after a notification; return its statements."""
    with CaptureQueriesContext(connection) as queries:
        subscriber.notify()
        while subscriber.run_once() == 0.0:
            pass
    return [query["sql"] for query in queries]


def reads(statements: list[str]) -> int:
    """How many have asked for messages, or where they are."""
    return sum(bool(re.search(r"^\W*SELECT.*FROM\W+sqlqueue_message\b", text, re.DOTALL)) for text in statements)


def newest(statements: list[str]) -> int:
    """How many have read what is new in the whole log."""
    return counted(statements, "payload", "sqlqueue_scheduled_message")


def test_three_groups_read_what_is_new_with_one_statement(host: Host, seen: list[tuple[str, Any]]) -> None:
    hosted = host("a", "b", "c")
    publish_many("t", [NewMessage(number, key=f"k{number}") for number in range(10)])
    statements = go_on(hosted)
    assert (reads(statements), newest(statements)) == (1, 1)
    assert sorted(seen) == [(group, number) for group in "abc" for number in range(10)]
    end = max(Message.objects.values_list("offset", flat=True))
    assert max(Offset.objects.values_list("position", flat=True)) == end


def test_keys_are_in_order_over_all_ways_of_reading(host: Host, seen: list[tuple[str, Any]]) -> None:
    hosted = host("a")
    for number in range(0, 1200, 300):  # more than are read at once
        publish_many("t", [NewMessage(n, key=f"k{n % 7}") for n in range(number, number + 300)])
        publish("t", 1200 + number, key=f"k{number % 7}")
        go_on(hosted)
    payloads = [payload for _, payload in seen]
    assert len(payloads) == len(set(payloads)) == 1204
    for key in range(7):
        of_key = [n for n in payloads if n < 1200 and n % 7 == key]
        assert of_key == sorted(of_key)


def test_a_backlog_is_read_by_partitions(host: Host, seen: list[tuple[str, Any]]) -> None:
    hosted = host("a")
    publish_many("t", [NewMessage(number, key=f"k{number}") for number in range(NEWEST_AT_ONCE)])
    statements = go_on(hosted)
    assert newest(statements) == 1, "it could not know what else there is"
    assert reads(statements) > 2
    assert len(seen) == NEWEST_AT_ONCE
    for number in range(3):
        publish("t", number)
        statements = go_on(hosted)
    assert reads(statements) == 1


def test_a_heavy_message_is_read_by_itself(host: Host, seen: list[tuple[str, Any]]) -> None:
    hosted = host("a")
    publish("t", "x" * 100, key="light")
    publish("t", "y" * (HEAVY + 1), key="heavy")
    statements = go_on(hosted)
    assert newest(statements) == 1
    assert reads(statements) > 1
    assert sorted(len(payload) for _, payload in seen) == [100, HEAVY + 1]


def test_what_others_own_is_read_for_nothing_less_and_less(host: Host, seen: list[tuple[str, Any]]) -> None:
    hosted = host("a", partitions={0})
    mine = next(key for key in map(str, range(50)) if partition_of(key, PARTITIONS) == 0)
    others = next(key for key in map(str, range(50)) if partition_of(key, PARTITIONS) != 0)
    tried: list[int] = []
    for number in range(8):
        publish("t", number, key=others)
        if newest(go_on(hosted)):
            tried.append(number)
    assert tried == [0, 2, 5], "of more failures follow longer pauses"
    for number in range(8):
        publish("t", number, key=mine)
        go_on(hosted)
    publish("t", 8, key=mine)
    assert newest(go_on(hosted)) == 1
    assert [payload for _, payload in seen] == list(range(9))


def test_it_is_useful_if_half_of_the_messages_are_taken() -> None:
    for total, well in ((2, True), (3, False)):
        messages = {("t", number, 0): [MessageValueFactory(offset=11 + number)] for number in range(total)}
        of_one = Following(LOG, ServerIdentity(LOG))
        of_one.keep(following.Newest(messages, total, 10 + total, None), 10)
        assert of_one.already_read(PartitionRef("g", "t", 0), Read(10, 4)).messages == messages["t", 0, 0]
        of_one.drop()
        assert of_one.trials.due() == well
    assert USEFUL == 0.5


def test_what_is_in_vain_is_skipped_up_to_a_bound() -> None:
    trials, skipped = Trials(), []
    for _ in range(9):
        count = 0
        while not trials.due():
            count += 1
        skipped.append(count)
        trials.ended(well=False)
    assert skipped == [0, 1, 2, 4, 8, 16, 32, 64, 64]
    assert max(skipped) == MOST_SKIPPED
    trials.ended(well=True)
    assert trials.due()


def test_what_no_partition_may_read_is_read_less_and_less(host: Host) -> None:
    """They are paused, or leaving."""
    hosted = host("a")
    tried = 0
    for number in range(8):
        publish("t", number, key=f"{number}")
        hosted.notify()
        with CaptureQueriesContext(connection) as queries:
            hosted.reader.log_end.look(hosted.working_set, hosted.clock(), notified=True)
            hosted.reader.read([], hosted.clock())
        tried += newest([query["sql"] for query in queries])
    assert tried == 3


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_a_log_with_many_gaps_is_read_as_before(host: Host, seen: list[tuple[str, Any]]) -> None:
    """As one that takes every third number: each attempt would be in vain."""
    hosted = host("a")
    tried = 0
    for number in range(16):
        publish_behind_a_gap(number)
        tried += newest(go_on(hosted))
        go_on(hosted)
    assert tried <= 5
    assert [payload for _, payload in seen] == list(range(16))


def test_what_a_read_may_not_bring_is_not_already_read(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = [MessageValueFactory(offset=offset, payload='"xx"') for offset in (11, 12, 13)]
    newest = following.Newest({("t", 0, 0): messages}, 3, 13, None)
    monkeypatch.setattr(following, "read_newest", lambda *_: newest)
    of_one = Following(LOG, ServerIdentity(LOG))
    assert of_one.read(10) is newest
    ref, read = PartitionRef("g", "t", 0), Read(10, 4, size=12)
    assert of_one.already_read(ref, read) is None
    of_one.keep(newest, 10)
    assert of_one.already_read(ref, read).messages == messages
    assert of_one.already_read(ref, read._replace(start=12)).messages == messages[2:]
    assert of_one.already_read(PartitionRef("g", "t", 1), read).messages == []
    for other in (
        read._replace(start=9),
        read._replace(limit=3),
        read._replace(size=11),
        read._replace(looks=1),
        read._replace(sift=object()),
    ):
        assert of_one.already_read(ref, other) is None
    of_one.drop()
    assert of_one.already_read(ref, read) is None


def test_filters_get_what_is_theirs(host: Host, seen: list[tuple[str, Any]]) -> None:
    hosted = host("filtered", where={"headers.kind": "wanted"})
    for number in range(20):
        publish("t", number, key=f"k{number}", headers={"kind": "wanted" if number % 2 else "other"})
        go_on(hosted)
    assert sorted(payload for _, payload in seen) == list(range(1, 20, 2))


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_one_that_is_not_committed_is_not_passed_over(host: Host, seen: list[tuple[str, Any]]) -> None:
    hosted = host("a")
    slow = OpenPublish("slow", key="a")
    publish("t", "fast", key="a")
    end = max(Message.objects.values_list("offset", flat=True))
    assert newest(go_on(hosted)) == 1
    assert hosted.reader.log_end.horizon.value < end
    publish("t", "next", key="b")
    assert newest(go_on(hosted)) == 0, "the gate is asked"
    slow.commit()
    go_on(hosted)
    go_on(hosted)  # each look at the gate is for the end that the one before has seen
    assert sorted(payload for _, payload in seen) == ["fast", "next", "slow"]
    publish("t", "skipped", key="a")
    assert newest(go_on(hosted)) == 0
    publish("t", "last", key="a")
    statements = go_on(hosted)
    assert (reads(statements), newest(statements)) == (1, 1)


def test_what_becomes_due_is_known_from_the_same_statement(host: Host) -> None:
    hosted = host("a")
    publish("t", "later", delay=5.0)
    publish("t", "now")
    statements = go_on(hosted)
    assert reads(statements) == 1
    assert hosted.reader.log_end.due_in == pytest.approx(5.0, abs=4.0)
