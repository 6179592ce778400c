"""unique_for: of a topic and key one message at a time is pending, and its publishers are told what there is."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from sqlqueue import (
    InvalidMessage,
    NewMessage,
    Published,
    PublishedMany,
    Reject,
    Retry,
    cancel,
    get_scheduled,
    get_status,
    publish,
    publish_many,
    publish_on_commit,
)
from sqlqueue.consumers.background.duties import CollectorTask
from sqlqueue.database.log import Log
from sqlqueue.database.retries import ErrorKind, classify
from sqlqueue.log import conflicts, groups, unique
from sqlqueue.log.schedule import move_due
from sqlqueue.models import ConsumerGroup, DeliveryState, Message, Offset, ScheduledMessage, Topic, UniqueMessage
from sqlqueue.operations.move import move
from tests.consuming import QUICK, Consuming
from tests.factories import BlockedRangeFactory, DeliveryStateFactory, OffsetFactory, now
from tests.logs import LOG
from tests.transactions import OpenTransaction

pytestmark = pytest.mark.django_db(transaction=True)

TOPIC, KEY = "sync", "a"
LATER = timedelta(hours=1)
IGNORED, CREATED, UPDATED = "ignored", "created", "updated"
Offer = Callable[..., Published]


@pytest.fixture(autouse=True)
def topics(settings: Any) -> None:
    settings.SQLQUEUE = {
        **QUICK,
        "TOPICS": {TOPIC: {"partitions": 1}, "own": {"partitions": 1, "unique_for": "key"}},
        "FLUSH_INTERVAL": 0,
    }


def alone(payload: Any = 0, *, unique_for: Any = "key", key: str = KEY, **options: Any) -> Published:
    return publish(TOPIC, payload, key=key, unique_for=unique_for, **options)


def of_many(payload: Any = 0, *, unique_for: Any = "key", key: str = KEY, **options: Any) -> Published:
    result = publish_many(TOPIC, ["before", NewMessage(payload, key=key, unique_for=unique_for, **options), "behind"])
    Message.objects.filter(partition_key="").delete()
    assert result.statuses is not None
    assert result.ids is not None
    assert [result.statuses[0], result.statuses[2]] == [CREATED] * 2
    offset = Message.objects.filter(message_id=result.ids[1]).values_list("offset", flat=True).first()
    return Published(offset, result.ids[1], result.statuses[1])


def in_a_transaction(way: Offer, *values: Any, **options: Any) -> Published:
    with transaction.atomic():
        return way(*values, **options)


WAYS = [alone, of_many, partial(in_a_transaction, alone), partial(in_a_transaction, of_many)]
ways = pytest.mark.parametrize("way", WAYS, ids=["alone", "many", "alone in one", "many in one"])


def wait_for_one(futures: Iterable["Future[Any]"], timeout: float) -> None:
    """Wait until one of them is done. Raises TimeoutError."""
    if not wait(futures, timeout, FIRST_COMPLETED).done:
        raise TimeoutError


def everything() -> tuple[list[Any], list[Any]]:
    """Return the payloads of the log and of the schedule."""
    log = Message.objects.order_by("offset").values_list("payload", flat=True)
    return list(log), list(ScheduledMessage.objects.order_by("id").values_list("payload", flat=True))


class TestWhatIsTold:
    @ways
    def test_a_second_one_is_ignored_and_told_of_the_first(self, way: Offer) -> None:
        for options in ({}, {"delay": LATER}):
            first = way(1, **options)
            assert first.status == CREATED
            for others in ({}, {"delay": LATER}, {"on_conflict": "ignore"}, {"id": "own"}):
                second = way(2, **others)
                assert (second.status, second.id, second.offset) == (IGNORED, first.id, first.offset)
            Message.objects.all().delete()
            ScheduledMessage.objects.all().delete()

    @ways
    def test_other_keys_and_topics_are_others(self, way: Offer) -> None:
        assert way(1).created
        assert way(2, key="b").created
        assert way(2, key="A").created
        assert publish("own", 3, key=KEY).created

    @ways
    def test_the_scheduled_one_is_replaced_if_that_is_asked_for(self, way: Offer) -> None:
        first = way(1, delay=LATER, headers={"n": 1})
        second = way(2, delay=2 * LATER, on_conflict="replace", headers={"n": 2})
        assert (second.status, second.id) == (UPDATED, first.id)
        scheduled = get_scheduled(TOPIC, id=first.id, key=KEY)
        assert scheduled is not None
        assert (scheduled.payload, scheduled.headers) == (2, {"n": 2})
        assert scheduled.due_at - scheduled.published_at > 1.9 * LATER
        third = way(3, on_conflict="replace")  # in its place, into the log now
        assert (third.status, third.id) == (UPDATED, first.id)
        assert everything() == ([3], [])
        fourth = way(4, delay=LATER, on_conflict="replace")
        assert (fourth.status, fourth.id, fourth.offset) == (IGNORED, first.id, third.offset)

    def test_a_plain_publish_neither_counts_nor_is_kept_out(self) -> None:
        assert publish(TOPIC, 1, key=KEY).created
        assert alone().created
        assert publish(TOPIC, 1, key=KEY).created
        assert not alone().created

    @ways
    def test_a_plain_one_does_not_count_because_its_id_was_offered(self, way: Offer) -> None:
        for options in ({}, {"delay": LATER}):
            publish(TOPIC, 1, key=KEY, id="own", **options)
            assert way(2, id="own").status == IGNORED
            assert way(3).created
            Message.objects.all().delete()
            ScheduledMessage.objects.all().delete()

    def test_the_target_group_makes_no_difference(self) -> None:
        for group in ("mail", "totals"):
            groups.register(LOG, group, TOPIC)
        assert alone(1, group="mail").created
        assert alone(2, group="totals").status == alone(3).status == IGNORED

    @pytest.mark.parametrize("atomic", [False, True])
    def test_a_handlers_own_message_is_pending(self, consuming: Consuming, atomic: bool) -> None:
        told = []

        def run(delivery: Any) -> None:
            told.append(alone(2, delay=LATER).status)
            told.append(alone(3, delay=LATER, unique_for=False).status)

        consuming.consumer(TOPIC, run, atomic=atomic)
        alone(1)
        consuming.drain()
        assert told == [IGNORED, CREATED]

    def test_publish_on_commit(self) -> None:
        with transaction.atomic():
            for number in range(2):
                publish_on_commit(TOPIC, number, key=KEY, unique_for="key")
            assert everything() == ([], [])
        assert everything() == ([0], [])

    def test_the_id_that_is_told_is_one_that_get_status_knows(self) -> None:
        groups.register(LOG, "default", TOPIC)
        alone()
        status = get_status(TOPIC, id=alone().id, key=KEY)
        assert status is not None
        assert status.groups["default"].state == "waiting"


class TestOfATopic:
    def test_its_option_holds_for_every_publish(self) -> None:
        first = publish("own", 1, key=KEY)
        assert publish("own", 2, key=KEY) == Published(first.offset, first.id, IGNORED)
        assert publish_many("own", [NewMessage(3, key=KEY)]).ids == [first.id]

    def test_false_is_not_at_all(self) -> None:
        publish("own", 1, key=KEY)
        assert publish("own", 2, key=KEY, unique_for=False).created
        assert publish("own", 2, unique_for=False).created

    def test_a_publish_may_say_something_else(self, settings: Any) -> None:
        settings.SQLQUEUE = {**settings.SQLQUEUE, "TOPICS": {"own": {"unique_for": timedelta(hours=1)}}}
        publish("own", 1, key=KEY)
        UniqueMessage.objects.update(published_at=now() - timedelta(minutes=90))
        assert not publish("own", 2, key=KEY, unique_for="key").created
        assert publish("own", 2, key=KEY).created


class TestRefused:
    def test_what_is_unique_is_the_key(self) -> None:
        for topic, options in ((TOPIC, {"unique_for": "key"}), ("own", {})):
            with pytest.raises(InvalidMessage, match=r"unique_for needs a key.*unique_for=False"):
                publish(topic, 1, **options)
            with pytest.raises(InvalidMessage, match="unique_for needs a key"):
                publish_many(topic, [NewMessage(1, **options)])
            with pytest.raises(InvalidMessage, match="unique_for needs a key"):
                publish_on_commit(topic, 1, **options)
        assert everything() == ([], [])

    @pytest.mark.parametrize(
        "value", ["", "keys", True, 0, -1, 0.0001, float("nan"), float("inf"), timedelta(0), 10**400, [], {}, b"key"]
    )
    def test_what_is_no_duration(self, value: Any) -> None:
        with pytest.raises(InvalidMessage, match="unique_for"):
            alone(unique_for=value)

    def test_replacing_needs_a_name_of_some_kind(self) -> None:
        with pytest.raises(InvalidMessage, match="needs an id, or unique_for"):
            publish(TOPIC, 1, key=KEY, on_conflict="replace")
        with pytest.raises(InvalidMessage, match="needs an id, or unique_for"):
            publish("own", 1, key=KEY, unique_for=False, on_conflict="replace")


class TestHowLong:
    """What is pending, by the state of the tables."""

    @pytest.fixture
    def offset(self) -> int:
        groups.register(LOG, "g", TOPIC)
        return alone().offset or 0

    def row(self, offset: int, **values: Any) -> None:
        place = {"topic": TOPIC, "consumer_group": "g", "partition": 0, "priority": 0}
        DeliveryStateFactory.create(**place, message_offset=offset, **values)

    def position(self, position: int, claimed_to: int | None = None) -> None:
        values = {"position": position, "offset_acked": position, "claimed_to": claimed_to or position}
        OffsetFactory.create(topic=TOPIC, consumer_group="g", partition=0, priority=0, **values)

    def test_until_its_group_has_passed_it(self, offset: int) -> None:
        self.position(offset - 1)
        assert not alone().created
        Offset.objects.update(position=offset)
        assert alone().created

    def test_a_row_says_more_than_the_position(self, offset: int) -> None:
        self.position(offset)
        self.row(offset)
        assert not alone().created
        DeliveryState.objects.update(acked=True)
        assert alone().created

    def test_an_acked_row_above_the_position(self, offset: int) -> None:
        self.position(offset - 1)
        self.row(offset, acked=True)
        assert alone().created

    def test_one_that_waits_behind_another_of_its_key(self, offset: int) -> None:
        self.position(offset)
        place = {"topic": TOPIC, "consumer_group": "g", "partition": 0, "priority": 0}
        low, high = BlockedRangeFactory.create(**place, partition_key=KEY, low=offset, high=offset + 5), offset
        assert alone().created
        UniqueMessage.objects.update(message_id=Message.objects.get(offset=high).message_id)
        type(low).objects.update(low=offset - 1)
        assert not alone().created

    def test_no_group_yet(self) -> None:
        assert alone().created
        assert not alone().created

    def test_every_group_that_gets_it(self, offset: int) -> None:
        groups.register(LOG, "other", TOPIC)
        self.position(offset)
        assert not alone().created
        OffsetFactory.create(topic=TOPIC, consumer_group="other", partition=0, priority=0, position=offset)
        assert alone().created

    def test_a_group_that_began_behind_it_does_not_get_it(self, offset: int) -> None:
        self.position(offset)
        groups.register(LOG, "late", TOPIC)
        ConsumerGroup.objects.filter(consumer_group="late").update(start=offset)
        assert alone().created

    def test_a_target_group_is_the_only_one(self, offset: int) -> None:
        Message.objects.filter(offset=offset).update(target_group="special")
        self.position(offset)
        assert not alone().created  # it waits for its group
        groups.register(LOG, "special", TOPIC)
        assert not alone().created
        OffsetFactory.create(topic=TOPIC, consumer_group="special", partition=0, priority=0, position=offset)
        assert alone().created

    def test_what_has_expired_is_pending_only_in_flight(self, offset: int) -> None:
        self.position(offset - 1)
        Message.objects.update(expires_at=now() + LATER)
        assert not alone().created
        Message.objects.update(expires_at=now() - LATER)
        Offset.objects.update(claimed_to=offset)
        assert not alone().created
        Offset.objects.update(claimed_to=offset - 1)
        self.row(offset, in_flight=1)
        assert not alone().created
        DeliveryState.objects.update(in_flight=0)
        assert alone().created

    @ways
    def test_a_cancelled_one_frees_the_key(self, way: Offer) -> None:
        first = way(delay=LATER)
        assert cancel(TOPIC, id=first.id, key=KEY)
        assert way(delay=LATER).created

    @ways
    def test_a_collected_one_frees_the_key(self, way: Offer) -> None:
        way()
        Message.objects.all().delete()
        assert way().created
        assert not way().created

    @ways
    def test_at_most_so_many_seconds_from_its_publish(self, way: Offer) -> None:
        first = way(unique_for=60)
        assert not way(unique_for=60).created
        UniqueMessage.objects.update(published_at=now() - timedelta(seconds=61))
        assert not way(unique_for=timedelta(seconds=90)).created
        second = way(unique_for=60)
        assert second.created
        assert way(unique_for=60).id == second.id != first.id

    def test_on_its_way_from_the_schedule_into_the_log(self) -> None:
        first = alone(delay=0)
        assert alone().id == first.id
        assert move_due(LOG) == 1
        second = alone()
        assert (second.id, second.status) == (first.id, IGNORED)
        assert second.offset is not None

    def test_a_group_that_is_moved_back_has_it_again(self, consuming: Consuming) -> None:
        consuming.consumer(TOPIC, lambda delivery: None)
        alone()
        consuming.drain()
        move(LOG, "default", TOPIC, 0)
        assert not alone().created


class TestOfHandlers:
    def test_acked_dead_and_retried(self, consuming: Consuming) -> None:
        def handler(delivery: Any) -> None:
            if delivery.payload == "dead":
                raise Reject
            if delivery.payload == "retried":
                raise Retry(delay=3600)

        consuming.consumer(TOPIC, handler)
        for key in ("acked", "dead", "retried"):
            assert alone(key, key=key).created
        consuming.drain()
        assert {key: alone(key, key=key).status for key in ("acked", "dead", "retried")} == {
            "acked": CREATED,
            "dead": CREATED,
            "retried": IGNORED,
        }

    def test_one_that_is_handled_counts_until_its_handler_has_returned(self, consuming: Consuming) -> None:
        told = []
        consuming.consumer(TOPIC, lambda delivery: told.append(alone().status))
        alone()
        consuming.drain()
        assert told == [IGNORED]
        assert alone().created

    def test_one_that_an_atomic_handler_has_acked_is_settled_with_what_it_wrote(self, consuming: Consuming) -> None:
        consuming.consumer(TOPIC, lambda delivery: None, atomic=True)
        alone()
        consuming.drain()
        assert alone().created


class TestTransactions:
    def test_a_rollback_frees_the_key(self) -> None:
        with transaction.atomic():
            assert alone().created
            assert not alone().created
            transaction.set_rollback(True)
        assert not UniqueMessage.objects.exists()
        assert alone().created

    def test_a_rollback_to_a_savepoint_frees_it_as_well(self) -> None:
        with transaction.atomic():
            with transaction.atomic():
                assert alone(delay=LATER).created
                transaction.set_rollback(True)
            assert alone(1).created
        assert everything() == ([1], [])

    @pytest.mark.database("mariadb", "mysql", "postgresql")
    @pytest.mark.parametrize("first", ["commits", "rolls back"])
    def test_a_second_publisher_waits_for_the_first(self, first: str) -> None:
        Topic.objects.count()
        with OpenTransaction() as one, OpenTransaction() as two:
            created = one.do(lambda: alone(1))
            other = two.start(lambda: alone(2))
            with pytest.raises(TimeoutError):
                other.result(0.2)
            getattr(one, "commit" if first == "commits" else "rollback")()
            told = other.result(60)
            two.commit()
        expected = (IGNORED, created.id) if first == "commits" else (CREATED, told.id)
        assert (told.status, told.id) == expected
        assert everything() == ([1 if first == "commits" else 2], [])

    @pytest.mark.database("mariadb", "mysql", "postgresql")
    @pytest.mark.parametrize("options", [{}, {"unique_for": None, "id": "own"}], ids=["unique", "id"])
    def test_of_several_that_wait_for_one_that_is_rolled_back_one_creates(self, options: Any) -> None:
        """On InnoDB the others are rolled back with a deadlock."""
        Topic.objects.count()
        with OpenTransaction() as one, OpenTransaction() as two, OpenTransaction() as three:
            one.do(lambda: alone(1, **options))
            waiting = {each: each.start(lambda: alone(2, **options)) for each in (two, three)}
            with pytest.raises(TimeoutError):
                wait_for_one(waiting.values(), 0.2)
            one.rollback()
            told = []
            while waiting:
                wait_for_one(waiting.values(), 60)
                each = next(each for each, future in waiting.items() if future.done())
                error = waiting[each].exception()
                if error is None:
                    told.append(waiting.pop(each).result().status)
                    each.commit()
                else:
                    assert (connection.vendor, classify(error)) == ("mysql", ErrorKind.CONTENTION)
                    waiting.pop(each)
                    each.rollback()
        assert told in ([CREATED], [CREATED, IGNORED])
        assert everything() == ([2], [])


@pytest.mark.database("mariadb", "mysql")
class TestSnapshots:
    """InnoDB at REPEATABLE READ: what was published after a transaction's snapshot is not seen in it, and counts."""

    @pytest.fixture
    def reader(self) -> Iterator[OpenTransaction]:
        with OpenTransaction() as reader:
            reader.do(self.begin)
            yield reader

    @staticmethod
    def begin() -> None:
        with connection.cursor() as cursor:
            cursor.execute("ROLLBACK")
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")

    @pytest.mark.parametrize("options", [{}, {"delay": LATER}], ids=["in the log", "scheduled"])
    @ways
    def test_one_that_the_snapshot_does_not_show_keeps_others_out(
        self, way: Offer, options: Any, reader: OpenTransaction
    ) -> None:
        first = alone(1, **options)
        told = reader.do(lambda: way(2))
        reader.commit()
        assert (told.status, told.id) == (IGNORED, first.id)
        assert sum(map(len, everything())) == 1

    def test_one_that_was_cancelled_meanwhile_does_not(self, reader: OpenTransaction) -> None:
        assert cancel(TOPIC, id=alone(1, delay=LATER).id, key=KEY)
        told = reader.do(alone)
        reader.commit()
        assert told.created

    def test_one_that_follows_the_one_of_the_snapshot(self) -> None:
        cancelled = alone(1, delay=LATER)
        with OpenTransaction() as reader:
            reader.do(self.begin)
            cancel(TOPIC, id=cancelled.id, key=KEY)
            second = alone(2)
            told = reader.do(alone)
            reader.commit()
        assert (told.status, told.id) == (IGNORED, second.id)


@pytest.mark.database("postgresql")
def test_a_snapshot_that_does_not_show_the_last_one_is_refused() -> None:
    """PostgreSQL at REPEATABLE READ says that the transaction has to be run again."""

    def begin() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("SELECT COUNT(*) FROM sqlqueue_message")

    publish(TOPIC, 0)
    with OpenTransaction() as reader:
        reader.do(begin)
        alone(1)
        with pytest.raises(Exception, match="could not serialize access"):
            reader.do(alone)
    assert everything() == ([0, 1], [])


class TestIdsOfTheCaller:
    @ways
    def test_both_rules_hold(self, way: Offer) -> None:
        first = way(1, id="x")
        assert first.created
        for id in ("x", "y"):
            assert way(2, id=id).id == "x"
        groups.register(LOG, "g", TOPIC)
        OffsetFactory.create(topic=TOPIC, consumer_group="g", partition=0, priority=0, position=first.offset)
        taken = way(2, id="x")  # settled, and still in the log
        assert (taken.status, taken.id, taken.offset) == (IGNORED, "x", first.offset)
        assert way(3, id="y").created
        assert way(4).id == "y"

    @ways
    def test_replacing_keeps_the_id_of_what_is_pending(self, way: Offer) -> None:
        assert way(1, id="x", delay=LATER).created
        told = way(2, id="y", delay=LATER, on_conflict="replace")
        assert (told.status, told.id) == (UPDATED, "x")
        assert get_scheduled(TOPIC, id="y", key=KEY) is None
        publish(TOPIC, 3, id="z", key=KEY)
        told = way(4, id="z", delay=LATER, on_conflict="replace")
        assert (told.status, told.id) == (IGNORED, "z")
        assert everything() == ([3], [2])

    @ways
    def test_one_that_was_cancelled_while_it_was_to_be_replaced(
        self, way: Offer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = way(1, delay=LATER)
        replace_scheduled = conflicts.replace_scheduled

        def late(log: Log, number: int, message: Any) -> bool:
            ScheduledMessage.objects.all().delete()
            return replace_scheduled(log, number, message)

        monkeypatch.setattr(conflicts, "replace_scheduled", late)
        told = way(2, delay=LATER, on_conflict="replace")
        assert (told.status, told.id) == (CREATED, first.id)
        assert way(3).id == first.id


class TestMany:
    def test_each_gets_its_status(self) -> None:
        before = alone(0, key="b")
        some = [
            NewMessage(1, key="a", unique_for="key"),
            NewMessage(2, key="a"),
            NewMessage(3, key="b", unique_for="key"),
            NewMessage(4, key="a", unique_for="key"),
            NewMessage(5, key="c", unique_for="key", delay=LATER),
            NewMessage(6, key="c", unique_for="key", delay=LATER, on_conflict="replace"),
            NewMessage(7, key="c", unique_for="key"),
            NewMessage(8, key="d", unique_for="key", id="x"),
            NewMessage(9, key="d", unique_for="key", id="y"),
        ]
        result = publish_many(TOPIC, some)
        c, i, u = CREATED, IGNORED, UPDATED
        assert result.statuses == [c, c, i, i, c, u, i, c, i]
        assert result.ids is not None
        assert result.ids[2] == before.id
        assert result.ids[3] == result.ids[0]
        assert result.ids[4] == result.ids[5] == result.ids[6]
        assert result.ids[7:] == ["x", "x"]
        assert (result.created, result.updated, result.ignored) == (4, 1, 4)
        assert everything() == ([0, 1, 2, 8], [6])
        assert publish_many(TOPIC, [message for message in some if message.unique_for]).created == 0

    def test_an_id_that_is_taken_frees_the_key_for_the_next_one(self) -> None:
        publish(TOPIC, 0, key="a", id="x")
        groups.register(LOG, "g", TOPIC)
        OffsetFactory.create(topic=TOPIC, consumer_group="g", partition=0, priority=0, position=10**9)
        some = [NewMessage(n, key="a", id=id, unique_for="key") for n, id in ((1, "x"), (2, "y"))]
        assert publish_many(TOPIC, some).statuses == [IGNORED, CREATED]

    def test_of_a_generator_in_constant_memory(self) -> None:
        some = (NewMessage(n, key=f"{n % 1_500}", unique_for="key") for n in range(3_000))
        assert publish_many(TOPIC, some) == PublishedMany(None, None, 1_500, 0, 1_500)
        assert Message.objects.count() == UniqueMessage.objects.count() == 1_500
        again = publish_many(TOPIC, (NewMessage(n, key=f"{n}", unique_for="key") for n in range(1_600)))
        assert (again.created, again.ignored) == (100, 1_500)

    def test_all_or_none(self) -> None:
        def some() -> Iterator[NewMessage]:
            yield NewMessage(1, key="a", unique_for="key")
            raise LookupError

        with pytest.raises(LookupError):
            publish_many(TOPIC, some())
        assert everything() == ([], [])
        assert alone().created


class TestPurge:
    @pytest.fixture(autouse=True)
    def old_enough(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(unique, "LEFT_ALONE", -60.0)

    def test_rows_of_what_is_settled_go(self) -> None:
        groups.register(LOG, "g", TOPIC)
        done = alone(key="done")
        OffsetFactory.create(topic=TOPIC, consumer_group="g", partition=0, priority=0, position=done.offset)
        alone(key="waits")
        alone(key="later", delay=LATER)
        cancel(TOPIC, id=alone(key="cancelled", delay=LATER).id, key="cancelled")
        assert unique.purge(LOG, "") == (2, "")
        assert set(UniqueMessage.objects.values_list("partition_key", flat=True)) == {"waits", "later"}
        assert alone(key="done").created
        assert not alone(key="waits").created

    def test_those_of_keys_in_use_stay(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(unique, "LEFT_ALONE", 600.0)
        alone()
        Message.objects.all().delete()
        assert unique.purge(LOG, "").rows == 0
        UniqueMessage.objects.update(published_at=now() - timedelta(seconds=601))
        assert unique.purge(LOG, "").rows == 1

    def test_a_purge_is_bounded_and_goes_on_where_the_last_one_ended(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(unique, "CHUNK", 3)
        monkeypatch.setattr(unique, "MOST_BATCHES", 2)
        publish_many(TOPIC, [NewMessage(n, key=f"{n}", unique_for="key") for n in range(10)])
        Message.objects.all().delete()
        first = unique.purge(LOG, "")
        assert first.rows == 6
        assert first.beyond
        assert unique.purge(LOG, first.beyond) == (4, "")
        assert not UniqueMessage.objects.exists()

    @pytest.mark.database("mariadb", "mysql", "postgresql")
    def test_it_waits_for_no_publisher_and_spoils_nothing_for_one(self) -> None:
        alone()
        Message.objects.all().delete()
        with OpenTransaction() as publisher:
            assert publisher.do(alone).created
            assert unique.purge(LOG, "").rows == 0
            publisher.commit()
        assert not alone().created

    def test_the_collector_does_it(self) -> None:
        alone()
        Message.objects.all().delete()
        CollectorTask(LOG, 60.0, 30.0).run_once()
        assert not UniqueMessage.objects.exists()


class TestWhatItCosts:
    """In statements, beside those of a transaction."""

    def counted(self, step: Callable[[], Any]) -> int:
        with CaptureQueriesContext(connection) as seen:
            step()
        words = ("BEGIN", "COMMIT", "SAVEPOINT", "RELEASE")
        return sum(not query["sql"].upper().startswith(words) for query in seen.captured_queries)

    def test_a_plain_publish_nothing_more(self) -> None:
        for topic in (TOPIC, "own"):
            publish(topic, 0, unique_for=False)
        assert self.counted(lambda: publish(TOPIC, 0, key=KEY)) == 1
        assert self.counted(lambda: publish("own", 0, key=KEY, unique_for=False)) == 1

    def test_a_unique_one_a_few(self) -> None:
        publish(TOPIC, 0)
        lock = 2 if connection.vendor == "mysql" else 1
        assert self.counted(alone) == lock + 1
        assert self.counted(alone) == lock + 1  # ignored
        Message.objects.all().delete()
        assert self.counted(alone) == lock + 3

    def test_many_no_more_than_one(self) -> None:
        publish_many(TOPIC, range(400))
        lock = 2 if connection.vendor == "mysql" else 1

        def many() -> None:
            publish_many(TOPIC, [NewMessage(n, key=f"{n}", unique_for="key") for n in range(400)])

        assert self.counted(many) == lock + 1
        assert self.counted(many) == lock + 1
        Message.objects.all().delete()
        assert self.counted(many) == lock + 3
