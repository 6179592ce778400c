"""Publishing: in the caller's transaction or not at all, once per id, whole."""

import threading
import tracemalloc
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

import pytest
from django.db import DatabaseError, connection, connections, transaction
from django.utils import timezone

from sqlqueue import InvalidMessage, NewMessage, PublishedMany, publish, publish_many, publish_on_commit
from sqlqueue.models import Message, Topic
from sqlqueue.signals import message_published
from tests.app.models import Effect
from tests.consuming import Consuming
from tests.refusing import refusing
from tests.servers.session import isolate, wait_for_locks
from tests.transactions import OpenTransaction


@contextmanager
def rolled_back() -> Iterator[None]:
    """A transaction that ends with a rollback, after everything in it has been done."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


def payloads(topic: str) -> list[object]:
    return [message.payload for message in Message.objects.filter(topic=topic).order_by("offset")]


def one_by_one(id: str) -> None:
    assert not publish("orders", 2, key="a", id=id).created


def in_bulk(id: str) -> None:
    assert publish_many("orders", [NewMessage(2, key="a", id=id)]).created == 0


def its_own(id: str) -> None:
    message = NewMessage(2, key="a", id=id.replace("-m", "-w"))
    assert publish_many("orders", [message, message]).created == 1
    assert publish_many("orders", [message]).created == 0


@pytest.mark.django_db(transaction=True)
class TestTheCallersTransaction:
    def test_a_message_is_committed_with_the_callers_rows(self) -> None:
        with transaction.atomic():
            Effect.objects.create(name="paid", value="7")
            publish("orders", 7)
        assert (Effect.objects.count(), payloads("orders")) == (1, [7])

    def test_a_message_is_rolled_back_with_the_callers_rows(self) -> None:
        publish("orders", "before")
        with rolled_back():
            Effect.objects.create(name="paid", value="7")
            publish("orders", 7)
            publish_many("orders", [8, 9])
        assert (Effect.objects.count(), payloads("orders")) == (0, ["before"])

    def test_a_savepoint_takes_back_only_what_was_published_in_it(self) -> None:
        with transaction.atomic():
            publish("orders", "before")
            with rolled_back():
                publish("orders", "inside")
            publish("orders", "after")
        assert payloads("orders") == ["before", "after"]

    def test_a_durable_block_keeps_what_an_inner_one_has_not_taken_back(self) -> None:
        with transaction.atomic(durable=True):
            publish("orders", "durable")
            with rolled_back():
                publish("orders", "inner")
        assert payloads("orders") == ["durable"]

    def test_no_reader_sees_it_before_the_commit(self) -> None:
        seen: list[object] = []

        def look() -> None:
            seen.append(payloads("orders"))
            connections.close_all()

        publish("orders", "before")
        with transaction.atomic():
            publish("orders", "open")
            other = threading.Thread(target=look)
            other.start()
            other.join()
        assert seen == [["before"]]

    def test_a_new_topic_of_a_transaction_that_rolled_back_can_be_published_to(self) -> None:
        with rolled_back():
            publish("fresh", 1)
        publish("fresh", 2)
        assert payloads("fresh") == [2]
        assert Topic.objects.filter(name="fresh").count() == 1

    @pytest.mark.database("mariadb", "mysql", "postgresql")
    def test_a_long_transaction_that_publishes_first_holds_up_no_other_publisher_of_the_topic(self) -> None:
        published = threading.Event()

        def other() -> None:
            wait_for_locks(5)
            publish("fresh", "second")
            published.set()
            connections.close_all()

        with transaction.atomic():
            publish("fresh", "first")
            thread = threading.Thread(target=other)
            thread.start()
            in_time = published.wait(30)
        thread.join()
        assert in_time, "the second publisher waited for the first one's commit"
        assert sorted(payloads("fresh")) == ["first", "second"]

    @pytest.mark.database("mariadb", "mysql", "postgresql")
    @pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
    @pytest.mark.parametrize("repeat", [one_by_one, in_bulk, its_own], ids=lambda repeat: repeat.__name__)
    def test_a_transaction_that_repeats_an_id_holds_up_no_other_publisher(
        self, level: str, repeat: Callable[[str], None]
    ) -> None:
        name = uuid.uuid4().hex  # no leavings of an earlier test beside it
        publish("orders", 1, key="a", id=f"{name}-m")
        publish("others", 1, key="a")

        def others() -> None:
            wait_for_locks(5)
            for letter in "blnz":
                publish("orders", letter, key="a", id=f"{name}-{letter}")
            publish("orders", "without an id", key="a")
            publish("others", "of another topic", key="a")
            connections.close_all()

        isolate(level)
        try:
            with rolled_back(), ThreadPoolExecutor(1) as pool:
                repeat(f"{name}-m")
                pool.submit(others).result()
        finally:
            connection.close()
        assert Counter(payloads("orders")) == Counter([1, *"blnz", "without an id"])


@pytest.mark.django_db
class TestWhatItReturns:
    def test_offset_id_and_created(self) -> None:
        published = publish("orders", 1, key="a", id="order-1")
        message = Message.objects.get()
        assert (published.offset, published.id, published.created) == (message.offset, "order-1", True)

    def test_ids_that_were_not_given_are_fresh(self) -> None:
        one, other = publish("orders", 1), publish("orders", 1)
        assert one.id != other.id
        assert set(Message.objects.values_list("message_id", flat=True)) == {one.id, other.id}

    def test_many_return_their_ids_in_the_order_given(self) -> None:
        result = publish_many("orders", [NewMessage(1, id="x"), 2, NewMessage(3, id="z")])
        assert (result.ids[0], result.ids[2], result.created) == ("x", "z", 3)
        assert Message.objects.get(message_id=result.ids[1]).payload == 2

    def test_none_are_none(self) -> None:
        assert publish_many("orders", []) == PublishedMany([], [], 0, 0, 0)
        assert publish_many("orders", iter(())) == PublishedMany(None, None, 0, 0, 0)
        assert not Message.objects.exists()

    def test_no_group_is_every_group_beside_messages_for_one(self) -> None:
        messages = [NewMessage(1, group=None), NewMessage(2, group="g")]  # type: ignore[arg-type]
        assert publish_many("orders", messages[:1]).created == 1
        assert publish_many("orders", messages).created == 2
        assert sorted(Message.objects.values_list("target_group", flat=True)) == ["", "", "g"]

    @pytest.mark.once
    def test_a_generator_is_published_in_constant_memory(self) -> None:
        def peak(count: int) -> int:
            tracemalloc.start()
            try:
                assert publish_many("orders", ({"filler": "x" * 2_000} for _ in range(count))).created == count
                return tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()

        peak(100)  # what is remembered of a statement and of the topic
        once = peak(1_500)
        assert peak(6_000) < 1.2 * once < 12_000_000  # bytes; the longer one's payloads have as many

    def test_an_iterable_that_raises_publishes_nothing(self) -> None:
        def numbers() -> Iterator[int]:
            yield from range(2_500)
            raise KeyError("of its own")

        with pytest.raises(KeyError, match="of its own"):
            publish_many("orders", numbers())
        assert not Message.objects.exists()

    def test_a_bad_one_among_many_lets_none_through(self) -> None:
        with pytest.raises(InvalidMessage):
            publish_many("orders", [*(NewMessage(n, id=str(n)) for n in range(2_499)), float("nan")])
        assert not Message.objects.exists()

    def test_many_keep_their_order(self) -> None:
        publish_many("orders", (NewMessage(number, key="a") for number in range(2_500)))
        assert payloads("orders") == list(range(2_500))

    def test_each_is_announced_once_it_is_written(self) -> None:
        heard: list[tuple[str, int]] = []

        def hear(*, topic: str, count: int, **_: object) -> None:
            heard.append((topic, count))

        message_published.connect(hear)
        try:
            publish("orders", 1, id="x")
            publish("orders", 1, id="x")
            publish_many("orders", [1, 2, 3])
        finally:
            message_published.disconnect(hear)
        assert heard == [("orders", 1), ("orders", 3)]


@pytest.mark.django_db(transaction=True)
class TestTheSameIdAgain:
    def test_it_is_no_second_message_and_changes_nothing_of_the_first(self) -> None:
        first = publish("orders", "first", key="a", id="x", headers={"n": 1})
        publish("orders", "between")
        again = publish("orders", "second", key="a", id="x", headers={"n": 2})
        assert (again.offset, again.id, again.created) == (first.offset, "x", False)
        message = Message.objects.get(message_id="x")
        assert (message.payload, message.headers) == ("first", {"n": 1})

    def test_in_one_transaction(self) -> None:
        with transaction.atomic():
            first, again = publish("orders", 1, id="x"), publish("orders", 2, id="x")
        assert (first.created, again.created, again.offset) == (True, False, first.offset)
        assert payloads("orders") == [1]

    def test_twice_in_one_bulk(self) -> None:
        result = publish_many("orders", [NewMessage(n, key="a", id=f"x{n % 3}") for n in range(7)])
        assert result.created == 3
        assert payloads("orders") == [0, 1, 2]

    @pytest.mark.parametrize("count", [1, 2, 1_200])
    def test_in_a_bulk_after_the_first(self, count: int) -> None:
        messages = [NewMessage(n, id=f"x{n}") for n in range(count)]
        assert publish_many("orders", messages).created == count
        assert publish_many("orders", messages).created == 0
        assert publish_many("orders", [*messages, NewMessage("new", id="y")]).created == 1
        assert payloads("orders") == [*range(count), "new"]

    @pytest.mark.database("mariadb", "mysql")
    @pytest.mark.parametrize("language", ["en_US", "de_DE"])
    def test_in_a_bulk_that_could_not_see_it_whatever_language_the_server_speaks(self, language: str) -> None:
        """The snapshot is older than the other's commit: only the insertion itself meets what is there already."""
        publish("orders", "so that the topic is there")
        isolate("REPEATABLE READ")
        try:
            with connection.cursor() as cursor:
                cursor.execute("SET lc_messages = %s", [language])
            with transaction.atomic(), OpenTransaction() as other:
                Message.objects.count()
                for name in "adf":
                    other.do(partial(publish, "orders", f"first {name}", key="k", id=name))
                other.commit()
                bulk = [NewMessage(f"second {name}", key="k", id=name) for name in "abcdef"]
                assert publish_many("orders", bulk[:1]).created == 0
                assert publish_many("orders", bulk).created == 3
                assert publish_many("orders", bulk).created == 0
        finally:
            connection.close()
        assert payloads("orders")[1:] == [f"first {name}" for name in "adf"] + [f"second {name}" for name in "bce"]

    def test_after_the_first_was_rolled_back_it_is_new(self) -> None:
        with rolled_back():
            publish("orders", "lost", id="x")
        assert publish("orders", "kept", id="x").created
        assert payloads("orders") == ["kept"]

    def test_in_another_topic_it_is_another_message(self) -> None:
        assert publish("orders", 1, id="x").created
        assert publish("bills", 1, id="x").created

    def test_after_its_first_was_acked_it_is_not_delivered_again(self, consuming: Consuming) -> None:
        seen: list[str] = []
        consuming.consumer("orders", lambda delivery: seen.append(delivery.payload))
        publish("orders", "first", key="a", id="x")
        consuming.drain()
        assert not publish("orders", "second", key="a", id="x").created
        consuming.drain()
        assert seen == ["first"]

    @pytest.mark.database("sqlite", "postgresql")
    def test_it_is_new_if_the_first_is_collected_before_it_can_be_found(self) -> None:
        first = publish("orders", "first", id="not yet x")

        def commit_after_the_look_and_collect_before_the_next(execute, sql, params, many, context):
            messages = Message.objects.filter(offset=first.offset)
            if "INSERT INTO" in sql:
                messages.update(message_id="x")
            elif sql.startswith("SELECT") and '"message_id" = ' in sql and "UNION" not in sql:
                messages.delete()
            return execute(sql, params, many, context)

        with connection.execute_wrapper(commit_after_the_look_and_collect_before_the_next):
            second = publish("orders", "second", id="x")
        assert (second.created, payloads("orders")) == (True, ["second"])

    @pytest.mark.database("mariadb", "mysql", "postgresql")
    def test_in_a_transaction_of_another_it_waits_for_that_and_is_then_no_second_message(self) -> None:
        results = []

        def other() -> None:
            results.append(publish("orders", "second", id="x"))
            connections.close_all()

        publish("orders", "so that the topic is there")
        with transaction.atomic():
            first = publish("orders", "first", id="x")
            thread = threading.Thread(target=other)
            thread.start()
            thread.join(0.3)
            assert not results, "it did not wait to see whether the first is committed"
        thread.join(60)
        assert [(result.created, result.offset) for result in results] == [(False, first.offset)]


@pytest.mark.django_db(transaction=True)
class TestKeysAndIdsAreKeptWhole:
    WORDS = ("a", "A", "a ", "ä", "á", "ss", "ß", "✈", "✈️", "👩‍👧", "👩", "ａ")

    def test_ids_differ_where_their_bytes_do(self) -> None:
        for word in self.WORDS:
            assert publish("orders", word, key="k", id=word).created, word
        for word in self.WORDS:
            assert not publish("orders", "again", key="k", id=word).created, word
        assert payloads("orders") == list(self.WORDS)

    def test_keys_differ_where_their_bytes_do(self) -> None:
        for word in self.WORDS:
            publish("orders", word, key=word)
        for word in self.WORDS:
            assert [message.payload for message in Message.objects.filter(partition_key=word)] == [word]

    def test_topics_and_groups_differ_by_case(self, consuming: Consuming) -> None:
        seen: list[tuple[str, str]] = []
        for topic, group in (("orders", "one"), ("Orders", "one"), ("orders", "One")):
            consuming.consumer(topic, lambda delivery: seen.append((delivery.topic, delivery.group)), group=group)
        publish("orders", 1)
        publish("Orders", 1)
        consuming.drain()
        assert sorted(seen) == [("Orders", "one"), ("orders", "One"), ("orders", "one")]

    @pytest.mark.parametrize("character", ["k", "ß", "👩"])
    def test_255_characters_fit(self, character: str) -> None:
        word = character * 255
        publish("orders", 1, key=word, id=word)
        message = Message.objects.get()
        assert (message.partition_key, message.message_id) == (word, word)

    def test_a_megabyte_fits(self) -> None:
        text = "ß" * 1_000_000
        publish("orders", {"text": text})
        publish_many("orders", [{"text": text}, 1])
        assert [message.payload for message in Message.objects.order_by("offset")] == [{"text": text}] * 2 + [1]

    def test_every_json_value_comes_back_as_it_was(self, consuming: Consuming) -> None:
        values = [
            None,
            True,
            0,
            -1.5,
            2**60,
            "",
            "null",
            '"quoted"',
            "\\ \n \u2028 ' %s %",
            "\\u0000 \\\\u0000",  # no NUL, but a backslash and more
            [],
            {},
            {"a": [{"b": None}]},
        ]
        seen: dict[str, list[object]] = {}

        @consuming.consumer("orders")
        def note(delivery) -> None:
            seen.setdefault(delivery.key, []).append((delivery.payload, delivery.headers))

        for number, value in enumerate(values):
            key, headers = str(number), {"value": value}
            publish("orders", value, key=key, headers=headers)
            publish_many("orders", [NewMessage(value, key=key, headers=headers)])
            publish("orders", value, key=key, headers=headers, delay=0)
        consuming.drain()
        assert seen == {str(number): [(value, {"value": value})] * 3 for number, value in enumerate(values)}

    def test_a_number_keeps_its_value_however_it_is_written(self, consuming: Consuming) -> None:
        seen: list[float] = []
        consuming.consumer("orders", lambda delivery: seen.append(float(delivery.payload)))
        for number in (0.1, 1.0, 1e16, 1e300, -2.5e-7):
            publish("orders", number, key="a")
        consuming.drain()
        assert seen == [0.1, 1.0, 1e16, 1e300, -2.5e-7]

    def test_the_payload_can_be_queried(self) -> None:
        publish("orders", {"carrier": "UA", "delays": [1, 5]})
        publish("orders", {"carrier": "AA", "delays": []})
        assert Message.objects.filter(payload__carrier="UA").count() == 1
        assert Message.objects.get(payload__delays__1=5).payload["carrier"] == "UA"

    @pytest.mark.database("sqlite", "mariadb", "mysql")
    def test_a_nul_character_in_json_is_a_character(self) -> None:
        publish("orders", {"a\0": "\0"})
        assert payloads("orders") == [{"a\0": "\0"}]

    @pytest.mark.database("postgresql")
    @pytest.mark.parametrize("zone", ["Asia/Kolkata", "America/St_Johns"])
    def test_its_times_do_not_depend_on_the_connections_time_zone(self, zone: str, consuming: Consuming) -> None:
        seen: list[tuple[object, timedelta]] = []
        consuming.consumer(
            "orders", lambda delivery: seen.append((delivery.payload, timezone.now() - delivery.created_at))
        )
        with connection.cursor() as cursor:
            cursor.execute("SET TIME ZONE %s", [zone])
        try:
            publish("orders", "now", key="a")
            publish("orders", "due", key="a", at=timezone.now() - timedelta(seconds=1))
            publish("orders", "later", key="a", at=timezone.now() + timedelta(hours=1))
            publish("orders", "delayed", key="a", delay=3600)
            consuming.drain()
        finally:
            connection.close()
        assert {payload for payload, _ in seen} == {"now", "due"}
        assert all(abs(age) < timedelta(minutes=1) for _, age in seen)

    def test_its_time_is_the_databases(self) -> None:
        publish("orders", 1)
        assert abs(Message.objects.get().created_at - timezone.now()) < timedelta(minutes=1)


@pytest.mark.django_db
class TestPartitions:
    def test_a_keys_partition_is_its_crc32(self) -> None:
        keys = ["a", "A", "N14228", "✈", "👩‍👧" * 10]
        for key in keys:
            publish("orders", key, key=key)
        for message in Message.objects.all():
            assert message.partition == zlib.crc32(message.partition_key.encode()) % 32

    @pytest.mark.database("mariadb", "mysql")
    def test_it_is_the_servers_crc32_too(self) -> None:
        publish_many("orders", [NewMessage(1, key=key) for key in ("a", "N14228", "✈", "👩‍👧")])
        with connection.cursor() as cursor:
            cursor.execute("SELECT COUNT(*) FROM sqlqueue_message WHERE `partition` = CRC32(partition_key) % 32")
            assert cursor.fetchone()[0] == 4

    def test_messages_without_a_key_are_spread_evenly(self) -> None:
        publish_many("orders", range(3_200))
        counts = Counter(Message.objects.values_list("partition", flat=True))
        assert len(counts) == 32
        assert min(counts.values()) > 50
        assert max(counts.values()) < 170

    def test_their_number_is_the_settings_when_the_topic_was_first_used(self, settings) -> None:
        topics = {"small": {"partitions": 1}, "other": {"priorities": 4}}
        settings.SQLQUEUE = {"PARTITIONS": 3, "TOPICS": topics, "STRICT_TOPICS": False}
        for topic in ("small", "other", "third"):
            publish(topic, 1)
        settings.SQLQUEUE = {"PARTITIONS": 9}
        publish("third", 2)
        topics = Topic.objects.values_list("name", "partitions", "priorities")
        assert sorted(topics) == [("other", 3, 4), ("small", 1, 1), ("third", 3, 1)]


@pytest.mark.django_db(transaction=True)
class TestOnCommit:
    def test_it_is_published_after_the_commit(self) -> None:
        with transaction.atomic():
            publish_on_commit("orders", 1, key="a", id="x", headers={"h": 1})
            assert not Message.objects.exists()
        message = Message.objects.get()
        assert (message.payload, message.partition_key, message.message_id, message.headers) == (1, "a", "x", {"h": 1})

    def test_it_is_not_published_after_a_rollback(self) -> None:
        with rolled_back():
            publish_on_commit("orders", 1)
        assert not Message.objects.exists()

    def test_without_a_transaction_it_is_published_at_once(self) -> None:
        publish_on_commit("orders", 1)
        assert payloads("orders") == [1]

    @pytest.mark.parametrize(
        ("payload", "options", "said"),
        [
            ({1, 2}, {}, "not JSON"),
            (1, {"key": "k" * 300}, "300 characters"),
            (1, {"delay": -1}, "delay"),
            (1, {"priority": 5}, "priority 5"),
        ],
    )
    def test_what_cannot_be_published_is_refused_in_the_transaction(self, payload, options, said) -> None:
        with transaction.atomic():
            with pytest.raises(ValueError, match=said):
                publish_on_commit("orders", payload, **options)
            Effect.objects.create(name="goes on", value="")
        assert (Effect.objects.count(), Message.objects.count()) == (1, 0)

    def test_what_fails_after_the_commit_keeps_no_later_hook_from_running(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        with refusing("refused"), transaction.atomic():
            Effect.objects.create(name="committed", value="")
            publish_on_commit("orders", 1, id="refused")
            publish_on_commit("orders", 2)
        assert (Effect.objects.count(), payloads("orders")) == (1, [2])
        assert "on_commit" in caplog.text

    def test_what_fails_without_a_transaction_is_the_callers_to_know(self) -> None:
        with refusing("refused"), pytest.raises(DatabaseError):
            publish_on_commit("orders", 1, id="refused")

    def test_an_option_that_is_unknown_is_refused(self) -> None:
        with pytest.raises(TypeError, match="no option 'ky'"):
            publish_on_commit("orders", 1, ky="a")
