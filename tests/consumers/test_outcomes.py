"""The outcomes of a delivery: returned, Retry, Postpone, Reject, any other exception; attempts and dead letters."""

from itertools import islice

import pytest
from django.db import connection, transaction

from sqlqueue import (
    LeaseLost,
    NewMessage,
    Postpone,
    Reject,
    Retry,
    publish,
    publish_many,
    replay,
    subscribe,
)
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.log.groups import revoke
from sqlqueue.models import DeliveryState, Message, Receipt
from sqlqueue.operations.move import move
from tests.consuming import QUICK, Consuming, offset_row, seconds_until_due, states
from tests.logs import LOG
from tests.processes import wait_until


class Stop(BaseException):
    """Not even an Exception."""


class Unspeakable(Exception):
    """One that cannot even be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


SAID = {
    "half a surrogate": "\ud800",
    "NUL": "a\0b",
    "too long": "✈" * 100_000,
    "too long in bytes": "👩" * 9_990,
    "marks": "% %s {} \\ '",
}


def make_due() -> None:
    """Let the time pass that everything waits for."""
    DeliveryState.objects.update(invisible_until=DatabaseNow())


def dead_letters(group: str = "default", topic: str = "t") -> list[Message]:
    return list(Message.objects.dead_letters(group, topic).order_by("offset"))


@pytest.fixture
def attempts() -> list[int]:
    """The attempts that the handler under test has seen."""
    return []


class TestReturned:
    def test_it_is_acked_and_leaves_no_row(self, consuming: Consuming, settings, attempts: list[int]) -> None:
        settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1}
        consuming.consumer("t", lambda delivery: attempts.append(delivery.attempt))
        offset = publish("t", 1).offset
        consuming.drain()
        row = offset_row("t")
        assert (row.position, row.offset_acked, row.claimed_to) == (offset, offset, offset)
        assert (attempts, states("t")) == ([1], [])

    def test_what_it_returns_means_nothing(self, consuming: Consuming, attempts: list[int]) -> None:
        def handle(delivery) -> object:
            attempts.append(delivery.attempt)
            return Retry(delay=0)

        consuming.consumer("t", handle)
        publish("t", 1)
        consuming.drain()
        assert attempts == [1]


class TestDelivery:
    def test_it_tells_everything_of_the_message(self, consuming: Consuming, settings) -> None:
        settings.SQLQUEUE = {**QUICK, "TOPICS": {"t": {"priorities": 2}}}
        seen = []
        consuming.consumer("t", seen.append, group="g")
        published = publish("t", {"a": [1]}, key="k", id="x", headers={"h": 1}, priority=1)
        message = Message.objects.get()
        consuming.drain()
        (delivery,) = seen
        assert (delivery.payload, delivery.headers, delivery.key, delivery.id) == ({"a": [1]}, {"h": 1}, "k", "x")
        assert (delivery.topic, delivery.group, delivery.partition) == ("t", "g", message.partition)
        assert (delivery.offset, delivery.attempt, delivery.priority) == (published.offset, 1, 1)
        assert delivery.created_at == message.created_at
        assert f"@{published.offset} attempt 1 for g" in repr(delivery)

    def test_headers_that_are_none_arrive_as_an_empty_mapping(self, consuming: Consuming) -> None:
        """However the message comes: a handler may ask for a header without looking first whether there are any."""
        with connection.cursor() as cursor:
            into = "INSERT INTO sqlqueue_scheduled_message"
            cursor.execute(f"{into} (topic, payload) VALUES ('t', '\"plain SQL\"')")
            cursor.execute(f"{into} (topic, payload, headers) VALUES ('t', '\"SQL NULL\"', NULL)")
            cursor.execute(f"{into} (topic, payload, headers) VALUES ('t', '\"JSON null\"', 'null')")
        publish("t", "left out")
        publish("t", "none", headers=None)
        publish("t", "empty", headers={})
        publish("t", "later", headers=None, delay=0.001)
        publish_many("t", [NewMessage("one of many", headers=None), NewMessage("with some", headers={"h": 1})])
        seen: dict[str, dict] = {}

        @consuming.consumer("t", max_attempts=1)
        def handle(delivery) -> None:
            seen[delivery.payload] = delivery.headers
            raise Reject("no")

        died: dict[str, dict] = {}
        consuming.consumer("t_dlq", lambda delivery: died.update({delivery.payload: delivery.headers}), group="g")
        wait_until(lambda: consuming.drain() and len(seen) == 9)
        consuming.drain()
        assert seen == died
        assert seen.pop("with some") == {"h": 1}
        assert list(seen.values()) == [{}] * 8
        seen.clear()
        assert replay("t") == 9
        consuming.drain("default")
        assert seen.pop("with some") == {"h": 1}
        assert list(seen.values()) == [{}] * 8


class TestRetried:
    def test_with_a_delay_of_its_own(self, consuming: Consuming, attempts: list[int]) -> None:
        @consuming.consumer("t")
        def handle(delivery) -> None:
            attempts.append(delivery.attempt)
            raise Retry("not yet", delay=3_000)

        offset = publish("t", 1).offset
        consuming.drain()
        assert states("t") == [(offset, 1, False)]
        assert 2_900 < seconds_until_due(offset) <= 3_000.1
        assert DeliveryState.objects.get().last_error == "not yet"
        make_due()
        consuming.drain()
        assert (attempts, states("t")) == ([1, 2], [(offset, 2, False)])

    def test_the_backoff_doubles_up_to_its_bound(self, consuming: Consuming) -> None:
        def handle(delivery) -> None:
            raise Retry

        consuming.consumer("t", handle, backoff=1_000, max_backoff=5_000, jitter=0)
        offset = publish("t", 1).offset
        delays = []
        for _ in range(4):
            consuming.drain()
            delays.append(seconds_until_due(offset))
            make_due()
        for delay, expected in zip(delays, [1_000, 2_000, 4_000, 5_000], strict=True):
            assert expected - 100 < delay <= expected + 0.1

    def test_the_jitter_spreads_it(self, consuming: Consuming) -> None:
        def handle(delivery) -> None:
            raise ValueError

        consuming.consumer("t", handle, backoff=10_000, max_backoff=20_000, jitter=0.5)
        offsets = [publish("t", 1).offset for _ in range(60)]
        consuming.drain()
        delays = [seconds_until_due(offset) for offset in offsets]
        assert 4_900 < min(delays) < 7_000
        assert 13_000 < max(delays) <= 15_000.1

    @pytest.mark.parametrize(
        "error", [ValueError("bad value ✈"), KeyError("k"), Stop("stop"), SystemExit(3), KeyboardInterrupt()], ids=repr
    )
    def test_any_exception_is_one_with_its_traceback(
        self, consuming: Consuming, attempts: list[int], error: BaseException
    ) -> None:
        @consuming.consumer("t", backoff=60)
        def handle(delivery) -> None:
            attempts.append(delivery.payload)
            if delivery.payload == "bad":
                raise error

        publish("t", "bad")
        publish("t", "good")
        subscriber = consuming.drain(threads=1)
        assert sorted(attempts) == ["bad", "good"]
        assert subscriber.settled == 2
        text = DeliveryState.objects.get().last_error
        assert "Traceback" in text
        assert "in handle" in text
        assert type(error).__name__ in text

    @pytest.mark.parametrize("said", SAID.values(), ids=SAID.keys())
    @pytest.mark.parametrize("kind", [ValueError, Retry, Reject, Unspeakable])
    def test_whatever_an_error_says_it_is_kept_as_far_as_it_can_be(
        self, consuming: Consuming, said: str, kind: type[Exception]
    ) -> None:
        def handle(delivery) -> None:
            if delivery.payload == "bad":
                raise kind(said)

        consuming.consumer("t", handle, backoff=60)
        publish("t", "bad")
        publish("t", "good")
        assert consuming.drain().settled == 2
        kept = dead_letters()[0].last_error if kind is Reject else DeliveryState.objects.get().last_error
        assert kept, "nothing was kept"
        assert len(kept) < 11_000, "too much was kept"


class TestPostponed:
    def test_no_attempt_is_charged_however_often(self, consuming: Consuming, attempts: list[int]) -> None:
        @consuming.consumer("t", max_attempts=2)
        def handle(delivery) -> None:
            attempts.append(delivery.attempt)
            if len(attempts) < 6:
                raise Postpone(delay=0)

        publish("t", 1)
        consuming.drain()
        assert attempts == [1] * 6
        assert dead_letters() == []

    def test_it_waits_as_long_as_it_says(self, consuming: Consuming) -> None:
        @consuming.consumer("t")
        def handle(delivery) -> None:
            raise Postpone("closed until noon", delay=4_000)

        offset = publish("t", 1).offset
        consuming.drain()
        assert states("t") == [(offset, 0, False)]
        assert 3_900 < seconds_until_due(offset) <= 4_000.1

    def test_attempts_that_failed_before_still_count(self, consuming: Consuming, attempts: list[int]) -> None:
        @consuming.consumer("t", max_attempts=3)
        def handle(delivery) -> None:
            attempts.append(delivery.attempt)
            if len(attempts) % 2:
                raise Retry(delay=0)
            raise Postpone(delay=0)

        publish("t", 1)
        consuming.drain()
        assert attempts == [1, 2, 2, 3, 3]
        assert len(dead_letters()) == 1

    def test_the_backoff_goes_on_where_it_was_and_the_error_stays(
        self, consuming: Consuming, attempts: list[int]
    ) -> None:
        """A postponement is neither a failure nor a success: a message that alternates would never end."""

        @consuming.consumer("t", max_attempts=3, backoff=1_000, jitter=0)
        def handle(delivery) -> None:
            attempts.append(delivery.attempt)
            if len(attempts) % 2:
                raise ValueError(f"failure {delivery.attempt}")
            raise Postpone(delay=500)

        offset = publish("t", 1).offset
        for delay, error in ((1_000, "failure 1"), (500, "failure 1"), (2_000, "failure 2"), (500, "failure 2")):
            consuming.drain()
            assert delay - 100 < seconds_until_due(offset) <= delay + 0.1
            assert DeliveryState.objects.get().last_error.endswith(error)
            make_due()
        consuming.drain()
        assert attempts == [1, 2, 2, 3, 3]
        assert [(each.failure_count, each.last_error[-9:]) for each in dead_letters()] == [(3, "failure 3")]

    def test_when_pulling_attempts_that_failed_before_still_count(self, consuming: Consuming) -> None:
        publish("t", 1)
        seen: list[int] = []
        with subscribe("t", timeout=60, max_attempts=2) as deliveries:
            for delivery in islice(deliveries, 4):
                seen.append(delivery.attempt)
                delivery.postpone(delay=0) if len(seen) % 2 else delivery.retry(delay=0, reason="not yet")
        assert seen == [1, 1, 2, 2]
        assert [(each.failure_count, each.last_error) for each in dead_letters()] == [(2, "not yet")]


class TestDeadLetters:
    def test_after_the_last_attempt_it_is_copied_with_all_that_was(
        self, consuming: Consuming, attempts: list[int], settings
    ) -> None:
        settings.SQLQUEUE = {**QUICK, "PARTITIONS": 3}

        @consuming.consumer("t", group="g", max_attempts=3, backoff=0)
        def handle(delivery) -> None:
            attempts.append(delivery.attempt)
            raise ValueError(f"attempt {delivery.attempt}")

        offset = publish("t", {"p": "✈"}, key="k", id="x", headers={"h": 1}).offset
        consuming.drain()
        assert attempts == [1, 2, 3]
        original = Message.objects.get(topic="t")
        (copy,) = dead_letters("g")
        assert (copy.topic, copy.partition, copy.partition_key) == (
            "t_dlq",
            original.partition,
            "k",
        )
        assert (copy.payload, copy.headers) == ({"p": "✈"}, {"h": 1})
        assert (copy.original_topic, copy.original_offset, copy.failed_group) == ("t", offset, "g")
        assert copy.failure_count == 3
        assert copy.last_error.endswith("ValueError: attempt 3")
        assert copy.failed_at is not None
        assert states("t", "g") == []
        assert offset_row("t", "g", original.partition).offset_acked == offset

    def test_a_retry_at_the_last_attempt_is_one(self, consuming: Consuming) -> None:
        @consuming.consumer("t", max_attempts=1)
        def handle(delivery) -> None:
            raise Retry("again", delay=0)

        publish("t", 1)
        consuming.drain()
        assert [(each.failure_count, each.last_error) for each in dead_letters()] == [(1, "again")]

    def test_a_rejected_message_is_one_at_once(self, consuming: Consuming) -> None:
        @consuming.consumer("t")
        def handle(delivery) -> None:
            raise Reject("unknown aircraft")

        publish("t", 1)
        consuming.drain()
        assert [(each.failure_count, each.last_error) for each in dead_letters()] == [(1, "unknown aircraft")]

    def test_the_log_keeps_the_message(self, consuming: Consuming) -> None:
        @consuming.consumer("t")
        def handle(delivery) -> None:
            raise Reject("no")

        published = publish("t", 1, id="x")
        consuming.drain()
        message = Message.objects.get(topic="t")
        assert (message.offset, message.message_id, message.failed_group) == (published.offset, "x", "")

    def test_the_same_message_can_die_twice(self, consuming: Consuming) -> None:
        said = iter(["first", "second"])

        @consuming.consumer("t")
        def handle(delivery) -> None:
            raise Reject(next(said))

        offset = publish("t", 1).offset
        consuming.drain()
        move(LOG, "default", "t", 0)
        consuming.drain()
        assert [(each.original_offset, each.last_error) for each in dead_letters()] == [(offset, "second")]

    def test_a_dead_letter_topic_can_be_consumed_like_any_other(self, consuming: Consuming) -> None:
        seen: list[tuple[object, str]] = []

        @consuming.consumer("t")
        def handle(delivery) -> None:
            raise Reject("no")

        consuming.consumer("t_dlq", lambda delivery: seen.append((delivery.payload, delivery.key)), group="undertaker")
        publish("t", 1, key="k")
        consuming.drain()
        consuming.drain()
        assert seen == [(1, "k")]

    def test_every_payload_is_copied_as_it_was(self, consuming: Consuming) -> None:
        values = [None, True, 0, "", "text", "null", [], {}, {"a": [None, "✈"]}]

        @consuming.consumer("t")
        def handle(delivery) -> None:
            raise Reject("no")

        for value in values:
            publish("t", value, headers={"value": value})
        consuming.drain()
        originals = Message.objects.filter(topic="t").order_by("offset")
        assert [original.payload for original in originals] == values
        copies = {each.original_offset: (each.payload, each.headers) for each in dead_letters()}
        assert copies == {original.offset: (original.payload, original.headers) for original in originals}


class TestLeaseLost:
    """Only the engine knows that a lease is lost; what a handler says of another one is a failure like any other."""

    @pytest.mark.parametrize(
        "options", [{}, {"batch": True}, {"atomic": True}, {"atomic": True, "batch": True}], ids=repr
    )
    def test_one_that_a_handler_lets_out_is_charged_and_ends_among_the_dead_letters(
        self, consuming: Consuming, attempts: list[int], options: dict
    ) -> None:
        @consuming.consumer("t", max_attempts=2, backoff=0, **options)
        def handle(given) -> None:
            attempts.extend(delivery.attempt for delivery in (given if "batch" in options else [given]))
            raise LeaseLost("of another partition")

        publish("t", 1)
        consuming.drain()
        assert attempts == [1, 2]
        assert "of another partition" in dead_letters()[0].last_error
        assert Receipt.objects.count() == 2

    @pytest.mark.parametrize("batch", [False, True])
    def test_one_that_an_async_handler_lets_out_likewise(
        self, consuming: Consuming, attempts: list[int], batch: bool
    ) -> None:
        @consuming.consumer("t", max_attempts=2, backoff=0, batch=batch)
        async def handle(given) -> None:
            attempts.extend(delivery.attempt for delivery in (given if batch else [given]))
            raise LeaseLost("of another partition")

        publish("t", 1)
        consuming.drain()
        assert attempts == [1, 2]
        assert "of another partition" in dead_letters()[0].last_error

    def test_the_engines_own_is_neither_charged_nor_told(
        self, consuming: Consuming, settings, attempts: list[int]
    ) -> None:
        settings.SQLQUEUE = {**QUICK, "HEARTBEAT_INTERVAL": 0.5}  # that often a renewal tells what is lost

        @consuming.consumer("t", max_attempts=1)
        def handle(delivery) -> None:
            attempts.append(delivery.attempt)
            if len(attempts) == 1:
                with transaction.atomic():
                    revoke(LOG, "default", "t")
                wait_until(lambda: is_lost(delivery))
                delivery.check_lease()

        publish("t", 1)
        consuming.drain()
        assert len(attempts) == 2
        assert dead_letters() == []


def is_lost(delivery) -> bool:
    """Tell whether the engine has noticed."""
    try:
        delivery.check_lease()
    except LeaseLost:
        return True
    return False
