"""sqlqueue.testing: a project's own tests deliver what is due, and see what was published."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Any
from unittest import mock

import pytest
from asgiref.sync import sync_to_async
from django.db import IntegrityError, connection, transaction
from django.test import TestCase, TransactionTestCase, override_settings
from django.test.utils import CaptureQueriesContext

from sqlqueue import Delivery, Postpone, Reject, Retry, publish, publish_many, publish_on_commit
from sqlqueue.consumers.engine.subscriber import Subscriber
from sqlqueue.exceptions import BrokenTransaction, SqlqueueError
from sqlqueue.models import DeliveryState, Message, ScheduledMessage, Topic
from sqlqueue.testing import drain, published
from tests.app.models import Effect
from tests.consuming import Consuming


class Handlers:
    """Gives a test case handlers of its own."""

    def setUp(self) -> None:
        super().setUp()
        self.consuming = Consuming()
        self.addCleanup(self.consuming.end)
        self.seen: list[object] = []


class TestDrainInTestCase(Handlers, TestCase):
    def test_handlers_see_and_add_to_the_tests_own_transaction(self) -> None:
        @self.consuming.consumer("orders")
        def note(delivery) -> None:
            Effect.objects.create(name=Effect.objects.get(name="made by the test").value, value=delivery.payload)

        Effect.objects.create(name="made by the test", value="seen by the handler")
        publish("orders", "paid", key="7")
        assert drain() == 1
        assert Effect.objects.get(name="seen by the handler").value == "paid"

    def test_a_message_published_by_a_handler_is_drained_too(self) -> None:
        @self.consuming.consumer("orders")
        def forward(delivery) -> None:
            if delivery.payload < 3:
                publish("orders", delivery.payload + 1)
            self.seen.append(delivery.payload)

        publish("orders", 1)
        assert drain() == 3
        assert self.seen == [1, 2, 3]

    def test_it_costs_what_the_topics_with_something_to_do_cost(self) -> None:
        for number in range(20):
            self.consuming.consumer(f"t{number}", lambda delivery: self.seen.append(delivery.topic), group="g")
        publish("t3", 1)
        with CaptureQueriesContext(connection) as statements:
            assert drain() == 1
        assert len(statements) < 200  # 1,600 for the partitions of all
        with CaptureQueriesContext(connection) as statements:
            assert drain() == 0
        assert len(statements) < 20
        assert self.seen == ["t3"]

    def test_what_is_published_on_the_way_to_topics_without_messages_is_drained_too(self) -> None:
        for number in range(5):
            topic, following = f"t{number}", f"t{(number + 1) % 5}"

            @self.consuming.consumer(topic, group=topic)
            def forward(delivery, following=following) -> None:
                self.seen.append(delivery.topic)
                if len(self.seen) < 8:
                    publish(following, 1)

        publish("t0", 1)
        assert drain() == 8
        assert self.seen == ["t0", "t1", "t2", "t3", "t4", "t0", "t1", "t2"]

    def test_a_group_that_begins_with_what_is_new_begins_with_a_drain(self) -> None:
        self.consuming.consumer("orders", lambda delivery: self.seen.append(delivery.payload), start="latest")
        publish("orders", "old")
        assert drain() == 0
        publish("orders", "new")
        assert (drain(), self.seen) == (1, ["new"])

    def test_drained_messages_are_not_drained_again(self) -> None:
        self.consuming.consumer("orders", lambda delivery: self.seen.append(delivery.payload))
        publish("orders", 1)
        assert (drain(), drain()) == (1, 0)
        assert self.seen == [1]

    def test_an_atomic_handlers_failure_rolls_back_its_writes_and_not_the_tests(self) -> None:
        @self.consuming.consumer("orders", atomic=True, max_attempts=1)
        def fail(delivery) -> None:
            Effect.objects.create(name="half done", value="")
            raise ValueError("no")

        Effect.objects.create(name="the test's", value="")
        publish("orders", 1)
        drain()
        assert [effect.name for effect in Effect.objects.all()] == ["the test's"]
        assert Message.objects.dead_letters("default", "orders").count() == 1

    def test_a_message_that_waits_is_left_alone(self) -> None:
        @self.consuming.consumer("orders")
        def later(delivery) -> None:
            self.seen.append(delivery.payload)
            raise Retry(delay=60)

        publish("orders", 1, key="a")
        publish("orders", 2, key="a")
        publish("orders", 3, delay=60)
        drain()
        assert self.seen == [1]

    @override_settings(SQLQUEUE={"LEASE_DURATION": 0.4, "HEARTBEAT_INTERVAL": 0.1})
    def test_it_may_take_longer_than_a_lease_lasts(self) -> None:
        @self.consuming.consumer("orders")
        def slowly(delivery) -> None:
            time.sleep(0.1)
            self.seen.append(delivery.payload)

        publish_many("orders", range(10))
        assert drain() == 10
        assert sorted(self.seen) == list(range(10))

    def test_a_message_that_is_due_at_once_again_and_again_ends_in_a_timeout(self) -> None:
        @self.consuming.consumer("orders")
        def never(delivery) -> None:
            raise Postpone(delay=0)

        publish("orders", 1)
        with pytest.raises(TimeoutError, match="still due after"):
            drain(timeout=0.5)

    def test_groups_and_topics_choose(self) -> None:
        for group in ("one", "two"):
            self.consuming.consumer("orders", lambda delivery: self.seen.append(delivery.group), group=group)
        publish("orders", 1)
        drain(groups=["two"])
        assert self.seen == ["two"]

    def test_a_commit_hook_that_is_run_leaves_no_topic_behind(self) -> None:
        with self.captureOnCommitCallbacks(execute=True):
            publish("never-committed", 1)
            publish_on_commit("never-committed", 2)
        assert [message.payload for message in published("never-committed")] == [1, 2]

    def test_and_so_the_next_test_creates_it(self) -> None:
        publish("never-committed", 3)
        assert Topic.objects.filter(name="never-committed").exists()

    def test_published_lists_what_is_scheduled_behind_the_log_by_when_it_is_due(self) -> None:
        at = datetime.now(timezone.utc) + timedelta(days=3)
        publish("orders", "last", delay=timedelta(days=14), key="k", id="i", headers={"h": 1}, group="g")
        publish("orders", "second", at=at)
        publish("orders", "first")
        publish("bills", "another")
        first, second, last = published("orders")
        assert [message.payload for message in (first, second, last)] == ["first", "second", "last"]
        assert (first.due_at, second.due_at) == (None, at)
        assert first.offset == Message.objects.get(topic="orders").offset
        assert (last.offset, last.key, last.id, last.headers, last.group) == (None, "k", "i", {"h": 1}, "g")
        assert last.row.pk == ScheduledMessage.objects.first().pk
        assert abs(last.due_at - datetime.now(timezone.utc) - timedelta(days=14)) < timedelta(minutes=1)
        assert [message.payload for message in published()] == ["first", "another", "second", "last"]

    def test_published_says_why_a_message_cannot_enter_the_log(self) -> None:
        ScheduledMessage.objects.create(topic="no such name!", payload=1)
        drain()
        (refused,) = published()
        assert (refused.offset, "no such name!" in refused.refusal) == (None, True)

    def test_published_lists_the_log_in_its_order(self) -> None:
        publish("orders", {"n": 1}, key="a", headers={"h": [1]})
        publish("bills", {"n": 2})
        assert [message.payload for message in published()] == [{"n": 1}, {"n": 2}]
        (order,) = published("orders")
        assert (order.key, order.headers) == ("a", {"h": [1]})
        assert published("bills")[0].headers == {}


class TestAsyncHandlersInTestCase(Handlers, TestCase):
    def setUp(self) -> None:
        super().setUp()
        Effect.objects.create(name="the test's", value="seen")

    def handle(self, **options: Any) -> None:
        @self.consuming.consumer("orders", **options)
        async def copy(given) -> None:
            for delivery in given if isinstance(given, list) else [given]:
                effect = await Effect.objects.aget(name="the test's")
                await asyncio.sleep(0.01)
                await Effect.objects.acreate(name=effect.value, value=delivery.payload)

    def assert_handled(self, *values: str) -> None:
        found = Effect.objects.filter(name="seen").values_list("value", flat=True)
        assert sorted(found) == sorted(values)

    def test_they_see_and_add_to_the_tests_own_transaction(self) -> None:
        self.handle()
        publish_many("orders", ["a", "b", "c"])
        publish("orders", "d", key="k")
        assert drain() == 4
        self.assert_handled("a", "b", "c", "d")

    def test_and_so_do_those_of_batches(self) -> None:
        self.handle(batch=True)
        publish_many("orders", ["a", "b", "c"])
        assert drain() == 3
        self.assert_handled("a", "b", "c")

    def test_sync_and_async_handlers_alternate(self) -> None:
        self.handle(group="one")
        self.consuming.consumer("orders", lambda delivery: publish("more", delivery.payload), group="two")

        @self.consuming.consumer("more")
        async def last(delivery) -> None:
            assert await Effect.objects.filter(name="seen").acount() == 2
            self.seen.append(delivery.payload)

        publish_many("orders", ["a", "b"])
        assert drain(groups=["one", "two"]) == 4
        assert drain() == 2
        assert sorted(self.seen) == ["a", "b"]

    async def test_in_an_async_test_by_sync_to_async(self) -> None:
        self.handle()
        await sync_to_async(publish)("orders", "a")
        assert await sync_to_async(drain)() == 1
        await sync_to_async(self.assert_handled)("a")

    def test_what_they_gather_runs_on_it_too(self) -> None:
        @self.consuming.consumer("orders")
        async def gather(delivery) -> None:
            counts = await asyncio.gather(*(Effect.objects.acount() for _ in range(3)))
            await sync_to_async(self.write)(sum(counts))

        publish("orders", 1)
        drain(raise_errors=True)
        assert Effect.objects.get(name="gathered").value == "3"

    def write(self, value: int) -> None:
        with transaction.atomic():
            Effect.objects.create(name="gathered", value=value)

    @pytest.mark.of_time
    def test_one_that_extends_its_time_is_not(self) -> None:
        @self.consuming.consumer("orders", visibility_timeout=0.2)
        async def slow(delivery) -> None:
            delivery.extend(60)
            await asyncio.sleep(0.5)
            self.seen.append(delivery.payload)

        publish("orders", 1)
        drain(raise_errors=True)
        assert self.seen == [1]

    def test_an_error_of_one_ends_the_drain_if_that_is_wanted(self) -> None:
        @self.consuming.consumer("orders")
        async def fail(delivery) -> None:
            await Effect.objects.aget(name="nowhere")

        publish("orders", 1)
        with pytest.raises(Effect.DoesNotExist):
            drain(raise_errors=True)

    def test_a_database_error_of_one_leaves_the_tests_transaction_usable(self) -> None:
        @self.consuming.consumer("orders", max_attempts=1)
        async def fail(delivery) -> None:
            await Effect.objects.acreate(name="before", value="")
            await Effect.objects.abulk_create([Effect(id=77, name="x"), Effect(id=77, name="y")])

        publish("orders", 1)
        assert drain() == 1
        assert "IntegrityError" in str(Message.objects.dead_letters().get().last_error)
        assert [effect.name for effect in Effect.objects.all()] == ["the test's"]


class TestErrorsOfHandlers(Handlers, TestCase):
    def fail(self, error: BaseException, **options: Any) -> None:
        @self.consuming.consumer("orders", **options)
        def fail(delivery) -> None:
            self.seen.append(delivery.payload)
            raise error

    def test_they_are_settled_as_in_production_and_no_more(self) -> None:
        self.fail(ValueError("no"), max_attempts=1)
        publish_many("orders", [1, 2])
        assert drain() == 2
        assert Message.objects.dead_letters().count() == 2

    def test_the_first_one_is_raised_if_that_is_wanted_and_settled_before(self) -> None:
        errors = [ValueError("first"), ValueError("second")]

        @self.consuming.consumer("orders", max_attempts=1)
        def fail(delivery) -> None:
            raise errors[delivery.payload]

        publish("orders", 0, key="k")
        publish("orders", 1, key="k")
        with pytest.raises(ValueError, match="first") as raised:
            drain(raise_errors=True)
        assert raised.value is errors[0]
        assert "fail" in [entry.name for entry in raised.traceback]
        assert [dead_letter.payload for dead_letter in Message.objects.dead_letters()] == [0]
        assert drain() == 1
        assert [dead_letter.payload for dead_letter in Message.objects.dead_letters()] == [0, 1]

    def test_what_is_left_behind_an_error_is_not_charged_an_attempt(self) -> None:
        attempts: list[tuple[int, int]] = []

        @self.consuming.consumer("orders", backoff=0)
        def fail_once(delivery) -> None:
            attempts.append((delivery.payload, delivery.attempt))
            if len(attempts) == 1:
                raise ValueError("no")

        publish_many("orders", range(5))
        with pytest.raises(ValueError, match="no"):
            drain(raise_errors=True)
        assert len(attempts) == 1
        drain(raise_errors=True)
        first = attempts[0][0]
        assert sorted(attempts[1:]) == sorted((payload, 2 if payload == first else 1) for payload in range(5))

    def test_a_batch_raises_its_error(self) -> None:
        self.consuming.consumer("orders", lambda deliveries: 1 / 0, batch=True)
        publish_many("orders", [1, 2])
        with pytest.raises(ZeroDivisionError):
            drain(raise_errors=True)

    def test_an_atomic_handler_raises_its_error_and_its_writes_are_gone(self) -> None:
        @self.consuming.consumer("orders", atomic=True)
        def fail(delivery) -> None:
            Effect.objects.create(name="half done", value="")
            raise ValueError("no")

        publish("orders", 1)
        with pytest.raises(ValueError, match="no"):
            drain(raise_errors=True)
        assert not Effect.objects.exists()

    def test_settlements_are_no_errors(self) -> None:
        for number, settlement in enumerate((Retry("r", delay=60), Postpone("p", delay=60), Reject("bad"))):
            self.consuming.consumer(f"t{number}", raising(settlement))
            publish(f"t{number}", number)
        assert drain(raise_errors=True) == 3
        assert [message.payload for message in published("t2_dlq")] == [2]

    def test_an_interrupt_by_the_person_is_never_swallowed(self) -> None:
        for interrupted in (self.fail, self.fail_async):
            self.consuming.end()
            self.consuming = Consuming()
            self.addCleanup(self.consuming.end)
            interrupted(KeyboardInterrupt())
            publish("orders", 1)
            with pytest.raises(KeyboardInterrupt):
                drain()

    def fail_async(self, error: BaseException) -> None:
        @self.consuming.consumer("orders", group="async")
        async def fail(delivery) -> None:
            raise error

    def test_a_database_error_leaves_the_tests_transaction_usable(self) -> None:
        @self.consuming.consumer("orders", max_attempts=1)
        def fail(delivery) -> None:
            Effect.objects.create(name="before", value="")
            Effect.objects.bulk_create([Effect(id=77, name="x"), Effect(id=77, name="y")])

        @self.consuming.consumer("orders", group="another")
        def well(delivery) -> None:
            Effect.objects.create(name="well", value=delivery.payload)

        Effect.objects.create(name="the test's", value="")
        publish("orders", 1)
        assert drain() == 2
        assert "IntegrityError" in str(Message.objects.dead_letters().get().last_error)
        assert {effect.name for effect in Effect.objects.all()} == {"the test's", "well"}

    def test_it_is_raised_if_that_is_wanted_and_the_transaction_is_usable(self) -> None:
        @self.consuming.consumer("orders")
        def fail(delivery) -> None:
            Effect.objects.bulk_create([Effect(id=77, name="x"), Effect(id=77, name="y")])

        publish("orders", 1)
        with pytest.raises(IntegrityError):
            drain(raise_errors=True)
        assert not Effect.objects.exists()

    def test_one_that_the_handler_swallows_is_told(self) -> None:
        @self.consuming.consumer("orders")
        def swallow(delivery) -> None:
            with suppress(IntegrityError):
                Effect.objects.bulk_create([Effect(id=77, name="x"), Effect(id=77, name="y")])

        publish("orders", 1)
        with pytest.raises(BrokenTransaction, match=r"swallowed"):
            drain(raise_errors=True)
        assert not Effect.objects.exists()

    def test_one_inside_the_handlers_own_block_is_its_own_affair(self) -> None:
        @self.consuming.consumer("orders")
        def careful(delivery) -> None:
            Effect.objects.create(name="before", value="")
            with suppress(IntegrityError), transaction.atomic():
                Effect.objects.bulk_create([Effect(id=77, name="x"), Effect(id=77, name="y")])
            with transaction.atomic(durable=True):
                Effect.objects.create(name="after", value="")

        publish("orders", 1)
        assert drain(raise_errors=True) == 1
        assert [effect.name for effect in Effect.objects.all()] == ["before", "after"]

    def test_hooks_of_what_is_rolled_back_are_not_run(self) -> None:
        @self.consuming.consumer("orders", max_attempts=1)
        def fail(delivery) -> None:
            transaction.on_commit(lambda: self.seen.append("run"))
            Effect.objects.bulk_create([Effect(id=77, name="x"), Effect(id=77, name="y")])

        publish("orders", 1)
        with self.captureOnCommitCallbacks(execute=True):
            drain()
        assert self.seen == []


def raising(error: Exception) -> Callable[[Delivery], None]:
    def handle(delivery: Delivery) -> None:
        raise error

    return handle


DAY = timedelta(days=1)


class TestLaterTimes(Handlers, TestCase):
    def note(self, topic: str = "orders", **options: Any) -> None:
        self.consuming.consumer(topic, lambda delivery: self.seen.append(delivery.payload), **options)

    def test_what_is_due_within_that_time_is_run_in_its_order_and_nothing_else(self) -> None:
        self.note()
        publish("orders", "later", delay=15 * DAY)
        publish("orders", "third", delay=14 * DAY)
        publish("orders", "second", at=datetime.now(timezone.utc) + 3 * DAY)
        publish("orders", "first")
        assert drain(ahead=14 * DAY) == 3
        assert self.seen == ["first", "second", "third"]

    def test_a_message_that_is_due_just_then_is_run(self) -> None:
        self.note()
        at = datetime.now(timezone.utc) + 3 * DAY
        publish("orders", 1, at=at)
        assert drain(until=at - timedelta(microseconds=1)) == 0
        assert drain(until=at) == 1

    def test_what_falls_due_while_an_iteration_ends_is_not_missed(self) -> None:
        def close_slowly(subscriber: Subscriber) -> None:
            close(subscriber)
            time.sleep(0.2)

        self.note()
        at = datetime.now(timezone.utc) + DAY
        publish("orders", "first", at=at)
        publish("orders", "second", at=at + timedelta(seconds=0.1))
        close = Subscriber.close
        with mock.patch.object(Subscriber, "close", close_slowly):
            assert drain(ahead=2 * DAY) == 2

    def test_what_is_not_due_by_then_keeps_its_time_to_the_microsecond(self) -> None:
        self.note()
        times = [datetime(2020, 1, 1, microsecond=n, tzinfo=timezone.utc) for n in (0, 1, 123456, 999999)]
        times = [at.replace(year=datetime.now(timezone.utc).year + 5) for at in times]
        for at in times:
            publish("orders", "far", at=at)
        for days in (1, 2, 3):
            publish("orders", days, delay=days * DAY)
        for number in (1, 2):
            assert drain(ahead=number * DAY) == 1
            assert [message.due_at for message in published()[-4:]] == times
        assert self.seen == [1, 2]
        assert drain(until=times[-2]) == 4
        assert [message.due_at for message in published() if message.due_at] == times[-1:]

    def test_retries_are_run_when_their_backoff_is_over(self) -> None:
        @self.consuming.consumer("orders", backoff=60, max_attempts=3)
        def fail(delivery) -> None:
            self.seen.append(delivery.attempt)
            raise ValueError("no")

        publish("orders", 1)
        assert drain() == 1
        assert drain(ahead=60 * 1.4) == 1
        assert drain(ahead=3600) == 1
        assert self.seen == [1, 2, 3]
        assert Message.objects.dead_letters().count() == 1

    def test_all_attempts_and_what_waits_behind_them(self) -> None:
        @self.consuming.consumer("orders", backoff=3600, max_backoff=7200)
        async def fail(delivery) -> None:
            self.seen.append((delivery.payload, delivery.attempt))
            if delivery.payload == "bad":
                raise ValueError("no")

        publish("orders", "bad", key="k")
        publish("orders", "behind", key="k")
        publish("orders", "other", key="l")
        drain(ahead=DAY)
        assert self.seen.pop(1 if self.seen[0][0] == "bad" else 0) == ("other", 1)
        assert self.seen == [*(("bad", attempt) for attempt in range(1, 6)), ("behind", 1)]

    def test_what_a_handler_schedules_is_counted_from_its_own_time(self) -> None:
        @self.consuming.consumer("orders")
        def remind(delivery) -> None:
            self.seen.append(delivery.payload)
            publish("orders", delivery.payload + 1, delay=3 * DAY)

        publish("orders", 0, delay=DAY)
        drain(ahead=8 * DAY)
        assert self.seen == [0, 1, 2]  # on days 1, 4 and 7
        (waiting,) = [message for message in published() if message.due_at]
        assert abs(waiting.due_at - datetime.now(timezone.utc) - 10 * DAY) < timedelta(minutes=1)

    def test_what_is_postponed_comes_again_in_due_time(self) -> None:
        @self.consuming.consumer("orders")
        def wait(delivery) -> None:
            self.seen.append(delivery.payload)
            if self.seen.count(delivery.payload) < 3:
                raise Postpone(delay=DAY)

        publish("orders", "postponed")
        publish("orders", "between", delay=1.5 * DAY)
        drain(ahead=10 * DAY)
        assert self.seen == ["postponed", "postponed", "between", "postponed", "between", "between"]

    def test_groups_choose_and_the_others_times_stay(self) -> None:
        for group in ("one", "two"):
            self.consuming.consumer("orders", self.postponing, group=group)
        publish("orders", 1)
        drain()
        before = times(group="one")
        assert drain(groups=["two"], ahead=DAY) == 1
        assert self.seen == [("one", 1), ("two", 1), ("two", 1)]
        assert times(group="one") == before
        assert drain(ahead=DAY) == 1

    def postponing(self, delivery: Delivery) -> None:
        self.seen.append((delivery.group, delivery.attempt))
        if self.seen.count((delivery.group, 1)) == 1:
            raise Postpone(delay=3600)

    def test_an_error_on_the_way_leaves_the_others_their_times(self) -> None:
        @self.consuming.consumer("orders", backoff=3600, jitter=0)
        def fail(delivery) -> None:
            raise ValueError(delivery.payload)

        publish("orders", "in two days", delay=2 * DAY)
        publish("orders", "tomorrow", delay=DAY)
        with pytest.raises(ValueError, match="tomorrow"):
            drain(raise_errors=True, ahead=3 * DAY)
        (waiting,) = [message for message in published() if message.due_at]
        now = datetime.now(timezone.utc)
        assert abs(waiting.due_at - now - 2 * DAY) < timedelta(minutes=1)
        (retry,) = times(group="default")
        assert abs(retry - now - DAY - timedelta(hours=1)) < timedelta(minutes=1)

    def test_a_time_that_no_iteration_reaches_ends_in_a_timeout(self) -> None:
        @self.consuming.consumer("orders")
        def never(delivery) -> None:
            raise Postpone(delay=1)

        publish("orders", 1)
        with pytest.raises(TimeoutError, match="still due after"):
            drain(timeout=1, ahead=100 * DAY)

    def test_a_message_of_a_topic_without_handlers_goes_into_the_log(self) -> None:
        publish("orders", 1, delay=DAY)
        drain(ahead=DAY)
        assert [message.due_at for message in published("orders")] == [None]

    def test_what_cannot_be_meant_is_refused(self) -> None:
        soon = datetime.now(timezone.utc)
        for options, said in (
            ({"until": soon, "ahead": DAY}, "not both"),
            ({"until": soon.replace(tzinfo=None)}, "aware datetime"),
            ({"until": soon.date()}, "aware datetime"),
            ({"until": soon + 4000 * DAY}, "ten years"),
            ({"ahead": -DAY}, "between 0 and ten years"),
        ):
            with pytest.raises(SqlqueueError, match=said):
                drain(**options)


def times(group: str) -> list[datetime]:
    waiting = DeliveryState.objects.filter(consumer_group=group, acked=False)
    return list(waiting.order_by("message_offset").values_list("invisible_until", flat=True))


class TestDrainInTransactionTestCase(Handlers, TransactionTestCase):
    def test_what_is_committed_is_drained(self) -> None:
        self.consuming.consumer("orders", lambda delivery: self.seen.append(delivery.payload))
        with transaction.atomic():
            publish("orders", 1)
        assert drain() == 1
        assert self.seen == [1]

    def test_each_test_begins_with_an_empty_log_and_creates_its_topics_anew(self) -> None:
        for number in range(2):
            self.consuming.consumer("orders", lambda delivery: self.seen.append(delivery.payload), group=f"g{number}")
            publish("orders", number)
            assert [message.payload for message in published()] == [number]
            assert drain(groups=[f"g{number}"]) == 1
            self._fixture_teardown()
        assert self.seen == [0, 1]
