"""Async handlers publish with the twins, on the connection of their other database calls."""

import asyncio
import threading
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import transaction
from django.test import TestCase, override_settings

from sqlqueue import apublish, apublish_many, publish, publish_many
from sqlqueue.database.log import Log
from sqlqueue.models import Message
from sqlqueue.testing import drain, published
from tests.app.models import Effect
from tests.consuming import QUICK, Consuming, states
from tests.processes import wait_until


def payloads(topic: str) -> list[Any]:
    return list(Message.objects.filter(topic=topic).order_by("offset").values_list("payload", flat=True))


def test_they_publish_alone_and_in_tasks(consuming: Consuming) -> None:
    @consuming.consumer("t")
    async def handle(delivery) -> None:
        number = delivery.payload
        await Effect.objects.acreate(name="seen", value=str(number))
        await asyncio.gather(
            apublish("next", number, id=f"one-{number}", key=str(number)),
            apublish_many("next", [number + 100, number + 200]),
            asyncio.create_task(apublish("next", number + 300)),
        )

    publish_many("t", range(10))
    consuming.drain()
    assert sorted(payloads("next")) == sorted(number + plus for number in range(10) for plus in (0, 100, 200, 300))
    assert Effect.objects.count() == 10


def test_a_handler_in_a_transaction_writes_both_or_neither(consuming: Consuming) -> None:
    @sync_to_async
    @transaction.atomic
    def write(number: int) -> None:
        Effect.objects.create(name="seen", value=str(number))
        publish("next", number)
        if number == 2:
            raise ValueError

    @consuming.consumer("t", max_attempts=1)
    async def handle(delivery) -> None:
        await write(delivery.payload)

    publish_many("t", [1, 2, 3])
    consuming.drain()
    assert sorted(payloads("next")) == [1, 3]
    assert sorted(Effect.objects.values_list("value", flat=True)) == ["1", "3"]


def test_the_sync_call_is_a_failure_that_says_what_to_write(consuming: Consuming) -> None:
    @consuming.consumer("t", max_attempts=1)
    async def handle(delivery) -> None:
        publish("next", 1)

    publish("t", 1)
    consuming.drain()
    assert "write `await apublish(…)`" in Message.objects.get(topic="t_dlq").last_error
    assert payloads("next") == []


def test_one_that_is_cancelled_while_it_publishes_comes_again_and_an_id_keeps_it_one_message(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sqlqueue.log import conflicts as module

    insert_one, held = module.insert_one, threading.Event()
    attempts: list[int] = []

    def slow(log: Log, row: Any, may_repeat: bool) -> Any:
        if row.topic == "next" and attempts == [1]:
            held.wait(60)
        return insert_one(log, row, may_repeat)

    monkeypatch.setattr(module, "insert_one", slow)

    @consuming.consumer("t", visibility_timeout=0.5, backoff=0)
    async def handle(delivery) -> None:
        if delivery.attempt > 1:
            delivery.extend(seconds=300)
        attempts.append(delivery.attempt)
        await apublish("next", delivery.payload, id=f"next-{delivery.id}")

    publish("t", 1)
    host = consuming.start()
    wait_until(lambda: attempts == [1, 2])
    held.set()
    wait_until(lambda: not states("t") and payloads("next"))
    host.stop()
    assert payloads("next") == [1]


@override_settings(SQLQUEUE=QUICK)
class InATestCase(TestCase):
    """drain() runs async handlers on the test's connection, and what they publish with them."""

    def setUp(self) -> None:
        self.consuming = Consuming()
        self.addCleanup(self.consuming.end)

    def test_a_twin_is_in_the_tests_transaction(self) -> None:
        @self.consuming.consumer("t")
        async def handle(delivery) -> None:
            await apublish("next", delivery.payload)

        publish("t", 1)
        assert drain(raise_errors=True) == 1
        assert [message.payload for message in published("next")] == [1]

    async def test_drain_in_an_async_test(self) -> None:
        @self.consuming.consumer("t")
        async def handle(delivery) -> None:
            await apublish("next", delivery.payload)

        await apublish("t", 1)
        assert await sync_to_async(drain)(raise_errors=True) == 1
        assert [message.payload for message in await sync_to_async(published)("next")] == [1]
