"""Ids: one message for each topic, key and id, in the log and in the schedule together, whatever is published how."""

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import DatabaseError, connection, connections, transaction
from django.utils import timezone

from sqlqueue import NewMessage, Published, publish, publish_many
from sqlqueue.database.ids import FEW_KEYS
from sqlqueue.log.schedule import move_due
from sqlqueue.log.topics import forget_topics
from sqlqueue.models import Message, ScheduledMessage, Topic
from sqlqueue.signals import message_published
from tests.logs import LOG
from tests.transactions import OpenTransaction

pytestmark = pytest.mark.django_db(transaction=True)

TOPIC = "mails"
KEYS = [f"customer {number}" for number in range(4 * FEW_KEYS)]
LATER = timedelta(hours=1)


@pytest.fixture(autouse=True)
def four_partitions(settings) -> None:
    settings.SQLQUEUE = {"TOPICS": {TOPIC: {"partitions": 4, "priorities": 2}, "letters": {}}}


def alone(keys: list[str], **options: Any) -> int:
    return sum(publish(TOPIC, "hello", key=key, id="welcome", **options).created for key in keys)


def in_bulk(keys: list[str], **options: Any) -> int:
    return publish_many(TOPIC, [NewMessage("hello", key=key, id="welcome", **options) for key in keys]).created


def in_a_transaction(way: Callable[..., int], keys: list[str], **options: Any) -> int:
    with transaction.atomic():
        return way(keys, **options)


WAYS = [alone, in_bulk, partial(in_a_transaction, alone), partial(in_a_transaction, in_bulk)]
NAMES = ["alone", "in bulk", "alone in a transaction", "in bulk in a transaction"]
ways = pytest.mark.parametrize("way", WAYS, ids=NAMES)
when = pytest.mark.parametrize("options", [{}, {"delay": LATER}], ids=["now", "later"])


def words_alone(words: Sequence[str], key: str, **options: Any) -> int:
    return sum(publish(TOPIC, "hello", key=key, id=word, **options).created for word in words)


def words_in_bulk(words: Sequence[str], key: str, **options: Any) -> int:
    return publish_many(TOPIC, [NewMessage("hello", key=key, id=word, **options) for word in words]).created


ways_of_words = pytest.mark.parametrize("way", [words_alone, words_in_bulk], ids=["alone", "in bulk"])


def everything() -> list[str]:
    """Return the keys of all messages, in the log and in the schedule."""
    keys = list(Message.objects.values_list("partition_key", flat=True))
    return sorted([*keys, *ScheduledMessage.objects.values_list("partition_key", flat=True)])


class TestTheScope:
    @ways
    @when
    def test_the_same_id_under_another_key_is_another_message(self, way: Callable[..., int], options: Any) -> None:
        assert way(KEYS, **options) == len(KEYS)
        assert everything() == sorted(KEYS)

    @ways
    @when
    @pytest.mark.parametrize("earlier", [{}, {"delay": LATER}], ids=["in the log", "scheduled"])
    def test_the_same_key_and_id_is_the_same_message(self, way: Callable[..., int], options: Any, earlier: Any) -> None:
        half = KEYS[::2]
        assert in_bulk(half, **earlier) == len(half)
        assert way(KEYS, **options) == len(KEYS) - len(half)
        assert way(KEYS, **options) == 0
        assert everything() == sorted(KEYS)

    @pytest.mark.parametrize("keys", [1, FEW_KEYS, FEW_KEYS + 1])
    @when
    def test_of_many_those_are_new_that_are(self, keys: int, options: Any) -> None:
        def messages(numbers: range) -> list[NewMessage]:
            return [NewMessage(n, key=KEYS[n % keys], id=f"{n // 2}", **options) for n in numbers]

        with transaction.atomic():
            first = publish_many(TOPIC, messages(range(40))).created
            assert publish_many(TOPIC, messages(range(20, 60))).created + first == len(everything())
        wanted = {(KEYS[n % keys], f"{n // 2}") for n in range(60)}
        found = [*Message.objects.values_list("partition_key", "message_id")]
        found += ScheduledMessage.objects.values_list("partition_key", "message_id")
        assert sorted(found) == sorted(wanted)

    @ways
    @when
    def test_whatever_the_number_of_partitions_becomes(self, way: Callable[..., int], options: Any) -> None:
        way(KEYS)
        Topic.objects.filter(name=TOPIC).update(partitions=7)
        forget_topics()
        assert way(KEYS, **options) == 0

    @ways
    @when
    def test_in_another_topic_it_is_another_message(self, way: Callable[..., int], options: Any) -> None:
        publish("letters", "hello", key="a", id="welcome")
        publish("letters", "hello", key="b", id="welcome", delay=LATER)
        assert way(["a", "b"], **options) == 2

    @ways
    def test_two_in_one_call_are_one(self, way: Callable[..., int]) -> None:
        assert way(["a", "b", "a"]) == 2
        assert way(["c", "c"], delay=LATER) == 1

    def test_of_one_call_the_first_counts_whether_it_is_due_or_not(self) -> None:
        result = publish_many(
            TOPIC,
            [
                NewMessage("later", key="a", id="x", delay=LATER),
                NewMessage("now", key="a", id="x"),
                NewMessage("now", key="b", id="x"),
                NewMessage("later", key="b", id="x", at=timezone.now() + LATER),
            ],
        )
        assert (result.ids, result.created) == (["x"] * 4, 2)
        assert [message.payload for message in Message.objects.all()] == ["now"]
        assert [message.payload for message in ScheduledMessage.objects.all()] == ["later"]


class TestExactly:
    WORDS = ("Welcome", "welcome", "wélcome", "welcome ", "Ж1", "order-🛫", "ﬀ", "ff")

    @ways_of_words
    def test_ids_differ_where_their_bytes_do_also_in_the_schedule(self, way: Callable[..., int]) -> None:
        for options in ({"delay": LATER}, {}):
            assert way(self.WORDS, "a", **options) == len(self.WORDS) * ("delay" in options)
        assert way(self.WORDS, "b") == len(self.WORDS)
        assert way(self.WORDS, "b", delay=LATER) == 0


class TestWhatItReturns:
    def test_the_offset_of_the_one_that_is_there(self) -> None:
        first = publish(TOPIC, 1, key="a", id="x")
        assert publish(TOPIC, 2, key="a", id="x", delay=1) == Published(first.offset, "x", "ignored")
        assert publish(TOPIC, 2, key="b", id="x", delay=LATER) == Published(None, "x", "created")
        assert publish(TOPIC, 3, key="b", id="x", delay=LATER) == Published(None, "x", "ignored")
        assert publish(TOPIC, 3, key="b", id="x") == Published(None, "x", "ignored")

    def test_it_stays_the_same_message_when_it_is_due(self) -> None:
        assert publish(TOPIC, "first", key="a", id="x", delay=0).created
        assert not publish(TOPIC, "again", key="a", id="x", delay=0).created
        assert move_due(LOG) == 1
        assert not publish(TOPIC, "again", key="a", id="x", delay=0).created
        assert [message.payload for message in Message.objects.all()] == ["first"]
        assert not ScheduledMessage.objects.exists()

    def test_what_is_scheduled_is_not_announced_as_published(self) -> None:
        heard: list[int] = []

        def hear(*, count: int, **_: object) -> None:
            heard.append(count)

        message_published.connect(hear)
        try:
            publish_many(TOPIC, [NewMessage(1), NewMessage(2, delay=LATER)])
            publish_many(TOPIC, [NewMessage(3, delay=LATER)])
        finally:
            message_published.disconnect(hear)
        assert heard == [1]

    def test_each_of_many_has_its_own_time_and_group(self) -> None:
        at = timezone.now().replace(microsecond=0) + LATER
        messages = [
            NewMessage("at", at=at, group="one", priority=1, headers={"h": 1}),
            NewMessage("now", group="two"),
            NewMessage("in an hour", delay=3600),
        ]
        result = publish_many(TOPIC, messages)
        assert result.created == len(set(result.ids)) == 3
        scheduled = {message.payload: message for message in ScheduledMessage.objects.all()}
        one = scheduled["at"]
        assert (one.due_at, one.target_group, one.priority, one.headers) == (at, "one", 1, {"h": 1})
        assert one.message_id == result.ids[0]
        assert abs((scheduled["in an hour"].due_at - at).total_seconds()) < 60
        assert Message.objects.get().target_group == "two"

    @pytest.mark.parametrize("wrong", [{"delay": -1}, {"at": "tomorrow"}, {"delay": 1, "at": timezone.now()}])
    def test_a_wrong_time_among_many_lets_none_through(self, wrong: Any) -> None:
        with pytest.raises(ValueError, match=r"delay|at"):
            publish_many(TOPIC, [NewMessage(1), NewMessage(2, delay=1), NewMessage(3, **wrong)])
        assert everything() == []

    def test_a_rollback_takes_all_of_them_back(self) -> None:
        with transaction.atomic():
            in_bulk(KEYS)
            in_bulk(["another"], delay=LATER)
            transaction.set_rollback(True)
        assert everything() == []
        assert in_bulk([*KEYS, "another"], delay=LATER) == len(KEYS) + 1


@pytest.mark.database("mariadb", "mysql", "postgresql")
class TestOpenTransactions:
    @pytest.fixture(autouse=True)
    def topic(self) -> None:
        publish(TOPIC, "so that the topic is there")

    @pytest.mark.parametrize("way", [alone, in_bulk])
    def test_two_that_schedule_the_same_id_wait_for_each_other(self, way: Callable[..., int]) -> None:
        results: list[int] = []

        def other() -> None:
            results.append(way(["a"], delay=LATER))
            connections.close_all()

        with transaction.atomic():
            assert way(["a"], delay=LATER) == 1
            thread = threading.Thread(target=other)
            thread.start()
            thread.join(0.3)
            assert not results, "it did not wait to see whether the first is committed"
        thread.join(60)
        assert results == [0]

    def test_one_that_publishes_and_one_that_schedules_deliver_it_once(self, caplog: pytest.LogCaptureFixture) -> None:
        with OpenTransaction() as other:
            assert other.do(lambda: publish(TOPIC, "published", key="a", id="x").created)
            assert publish(TOPIC, "scheduled", key="a", id="x", delay=0).created
            other.commit()
        with caplog.at_level("INFO", "sqlqueue"):
            assert move_due(LOG) == 1
        assert [message.payload for message in Message.objects.filter(message_id="x")] == ["published"]
        assert "event=scheduled_messages_repeated messages=1" in caplog.text


class TestTheSchedulerBetweenTwoStatements:
    """It moves what is due while a publisher looks, or counts."""

    @pytest.mark.parametrize("before", ["SELECT found", "SELECT topic", "SELECT COUNT(*) FROM sqlqueue_scheduled"])
    def test_nothing_is_counted_wrongly(self, before: str) -> None:
        publish(TOPIC, "first", key="a", id="0", delay=0)
        moved: list[int] = []

        def move(execute, sql, params, many, context):
            plain = sql.replace('"', "").replace("`", "")
            if before in plain and not connection.in_atomic_block and not moved:
                moved.append(0)
                moved[0] = move_due(LOG)
            return execute(sql, params, many, context)

        keys = 2 * FEW_KEYS if before == "SELECT found" else 1
        messages = [NewMessage(n, key=f"{'a' if n < 1 else n % keys}", id=f"{n}", delay=0) for n in range(40)]
        with connection.execute_wrapper(move):
            assert publish_many(TOPIC, messages).created == 39
        while move_due(LOG):
            pass
        assert Message.objects.count() == 40


class TestPlainSql:
    INSERT = "INSERT INTO sqlqueue_scheduled_message (topic, payload{}) VALUES (%s, '1'{})"

    def insert(self, **columns: str) -> None:
        names, marks = "".join(f", {name}" for name in columns), ", %s" * len(columns)
        with connection.cursor() as cursor:
            cursor.execute(self.INSERT.format(names, marks), [TOPIC, *columns.values()])

    def test_rows_without_an_id_are_messages_of_their_own(self) -> None:
        for _ in range(3):
            self.insert()
        assert move_due(LOG) == 3
        assert len(set(Message.objects.values_list("message_id", flat=True))) == 3

    def test_an_id_counts_at_once(self) -> None:
        self.insert(message_id="x", partition_key="a")
        self.insert(message_id="x", partition_key="b")
        with pytest.raises(DatabaseError, match=r"(?i)duplicate|unique"):
            self.insert(message_id="x", partition_key="a")
        assert not publish(TOPIC, 2, key="a", id="x").created

    def test_an_empty_id_is_refused(self) -> None:
        with pytest.raises(DatabaseError, match="sqlqueue_scheduled_id_not_empty"):
            self.insert(message_id="")
