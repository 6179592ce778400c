"""sqlqueue.testing: a project's own tests deliver what is due, and see what was published."""

import time

import pytest
from django.db import transaction
from django.test import TestCase, TransactionTestCase, override_settings

from sqlqueue import Postpone, Retry, publish, publish_many, publish_on_commit
from sqlqueue.models import Message, Topic
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

    def test_published_lists_the_log_in_its_order(self) -> None:
        publish("orders", {"n": 1}, key="a", headers={"h": [1]})
        publish("bills", {"n": 2})
        assert [message.payload for message in published()] == [{"n": 1}, {"n": 2}]
        (order,) = published("orders")
        assert (order.partition_key, order.headers) == ("a", {"h": [1]})


class TestDrainInTransactionTestCase(Handlers, TransactionTestCase):
    def test_what_is_committed_is_drained(self) -> None:
        self.consuming.consumer("orders", lambda delivery: self.seen.append(delivery.payload))
        with transaction.atomic():
            publish("orders", 1)
        assert drain() == 1
        assert self.seen == [1]

    def test_each_test_begins_with_an_empty_log_and_creates_its_topics_anew(self) -> None:
        for turn in range(2):
            self.consuming.consumer("orders", lambda delivery: self.seen.append(delivery.payload), group=f"g{turn}")
            publish("orders", turn)
            assert [message.payload for message in published()] == [turn]
            assert drain(groups=[f"g{turn}"]) == 1
            self._fixture_teardown()
        assert self.seen == [0, 1]
