"""Async handlers: one that blocks the event loop, or the thread of their database calls, stops itself alone;
connections that were lost are replaced, and none is left inside a transaction."""

from __future__ import annotations

import asyncio
import itertools
import threading

import pytest
from asgiref.sync import sync_to_async
from django.db import connections, transaction

from sqlqueue import publish, publish_many
from sqlqueue.consumers.handlers.pools import ThreadPool
from sqlqueue.models import Message
from tests.app.models import Effect
from tests.consuming import QUICK, Consuming
from tests.processes import wait_until
from tests.servers.processlist import sessions
from tests.servers.session import connection_id

pytestmark = pytest.mark.once

BATCH = pytest.mark.parametrize("batch", [False, True], ids=["each", "batch"])
SERVERS = pytest.mark.database("mariadb", "mysql", "postgresql")
SOON, LONG = 1.0, 300.0


def dead_letters() -> list[Message]:
    return list(Message.objects.filter(topic__endswith="_dlq").order_by("offset"))


def threads(name: str) -> set[str]:
    return {thread.name for thread in threading.enumerate() if name in thread.name}


@pytest.fixture
def quick(consuming: Consuming, monkeypatch: pytest.MonkeyPatch, settings) -> None:
    monkeypatch.setattr("sqlqueue.consumers.handlers.event_loop.BLOCKED_AFTER", 0.5)
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1}


def blocked(gate: threading.Event) -> None:
    """What its stack is recognized by."""
    gate.wait()


async def block(gate: threading.Event) -> None:
    blocked(gate)


async def block_in_a_task(gate: threading.Event) -> None:
    await asyncio.wait_for(asyncio.gather(block(gate)), LONG)


async def block_the_database_thread(gate: threading.Event) -> None:
    await sync_to_async(blocked)(gate)


WAYS = pytest.mark.parametrize("way", [block, block_in_a_task, block_the_database_thread])


@pytest.mark.usefixtures("quick")
class TestABlockedLoop:
    @WAYS
    def test_the_handler_that_blocks_is_charged_and_named_and_the_others_go_on(
        self, consuming: Consuming, caplog: pytest.LogCaptureFixture, way
    ) -> None:
        """Without that, no async handler of the process would ever run again, and nothing would tell."""
        gate, inside = consuming.gate(), threading.Event()
        waiting: list[int] = []
        done: list[object] = []
        options = {"ordering": "none", "max_attempts": 1, "visibility_timeout": SOON}

        @consuming.consumer("blocks", **options)
        async def blocks(delivery) -> None:
            inside.set()
            await way(gate)

        @consuming.consumer("waits", **options)
        async def waits(delivery) -> None:
            waiting.append(delivery.attempt)
            if len(waiting) == 1:
                delivery.extend(2.0)
                await asyncio.sleep(0)
                while not inside.is_set():
                    await asyncio.sleep(0.01)
                await sync_to_async(connections["default"].ensure_connection)()
            done.append("waited")

        @consuming.consumer("later", **options)
        async def later(delivery) -> None:
            done.append(delivery.payload)

        publish("waits", 1)
        host = consuming.start()
        wait_until(lambda: waiting)
        publish("blocks", 1)
        assert inside.wait(30)
        publish_many("later", [1, 2])
        wait_until(lambda: len(done) == 3)
        wait_until(dead_letters)
        (dead_letter,) = dead_letters()
        assert dead_letter.topic == "blocks_dlq"
        assert "still running after its visibility timeout" in dead_letter.last_error
        assert waiting == [1, 1]
        (said,) = [record.getMessage() for record in caplog.records if "_blocked" in record.getMessage()]
        assert "topic=blocks" in said
        assert "blocks" in said.partition("handler=")[2].partition(" ")[0]
        assert "in blocked" in said
        assert host.running

    def test_one_that_comes_back_in_time_is_acked_and_its_loop_ends(self, consuming: Consuming) -> None:
        gate, inside = consuming.gate(), threading.Event()
        done: list[object] = []

        @consuming.consumer("blocks", max_attempts=1, visibility_timeout=LONG)
        async def blocks(delivery) -> None:
            inside.set()
            gate.wait()
            done.append("blocked")

        @consuming.consumer("later", max_attempts=1)
        async def later(delivery) -> None:
            done.append("later")

        publish("blocks", 1)
        host = consuming.start()
        assert inside.wait(30)
        publish("later", 1)
        wait_until(lambda: done == ["later"])
        pool = host.subscriber.dispatcher.pool
        assert isinstance(pool, ThreadPool)
        assert len(pool._retired) == 1
        gate.set()
        wait_until(lambda: done == ["later", "blocked"])
        wait_until(lambda: not pool._retired)
        wait_until(lambda: len(threads("-loop-")) == 2)  # the new one, and its database thread
        host.stop()
        consuming.drain()
        assert done == ["later", "blocked"]

    def test_when_too_many_block_theirs_the_consumer_ends(
        self, consuming: Consuming, monkeypatch: pytest.MonkeyPatch, settings
    ) -> None:
        monkeypatch.setattr("sqlqueue.consumers.handlers.event_loop.BLOCKED_AFTER", 0.1)
        monkeypatch.setattr("sqlqueue.consumers.handlers.event_loop.LOOKS", 1)
        settings.SQLQUEUE = {**settings.SQLQUEUE, "SHUTDOWN_TIMEOUT": 1.0}
        gate = consuming.gate()

        @consuming.consumer("t", max_attempts=1, visibility_timeout=0.1, ordering="none")
        async def handle(delivery) -> None:
            gate.wait()

        publish_many("t", range(40))
        host = consuming.start(threads=1)
        wait_until(lambda: not host.running, timeout=120)

    def test_a_task_that_exits_does_not_end_the_loop(self, consuming: Consuming) -> None:
        done: list[object] = []

        async def leave() -> None:
            raise SystemExit(3)

        @consuming.consumer("t", max_attempts=1, ordering="none")
        async def handle(delivery) -> None:
            if delivery.payload == "exits":
                await asyncio.gather(leave())
            done.append(delivery.payload)

        publish_many("t", ["exits", 1])
        consuming.start()
        wait_until(lambda: done == [1])
        wait_until(lambda: [dead_letter.payload for dead_letter in dead_letters()] == ["exits"])


async def write(value: object) -> None:
    await Effect.objects.acreate(name="seen", value=str(value))


def effects() -> list[str]:
    return sorted(Effect.objects.values_list("value", flat=True))


@SERVERS
@BATCH
@pytest.mark.session
def test_a_connection_that_was_lost_while_idle_fails_no_delivery(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch, batch: bool
) -> None:
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", None)
    monkeypatch.setattr("sqlqueue.consumers.handlers.connections.CONNECTIONS_LAST", 0.0)  # as if time had passed
    seen: list[int] = []

    @consuming.consumer("t", max_attempts=1, batch=batch)
    async def handle(given) -> None:
        await write("1")
        seen.append(await sync_to_async(connection_id)())

    consuming.start()
    for number in itertools.count(1):
        publish("t", number)
        wait_until(lambda: len(seen) == number or dead_letters())  # noqa: B023
        assert not dead_letters()
        if number == 3:
            break
        sessions().end(seen[-1])
    assert len(set(seen)) == 3


@SERVERS
@pytest.mark.session
def test_a_connection_that_is_lost_under_handlers_costs_one_attempt_at_most(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", None)
    seen: list[int] = []

    @consuming.consumer("t", max_attempts=2, backoff=0, ordering="none")
    async def handle(delivery) -> None:
        await write(delivery.payload)
        seen.append(await sync_to_async(connection_id)())

    publish("t", 0)
    consuming.start()
    wait_until(lambda: seen)
    sessions().end(seen[0])
    publish_many("t", range(1, 6))
    wait_until(lambda: set(effects()) == set("012345") or dead_letters())
    assert not dead_letters()


def test_a_call_that_leaves_a_transaction_open_fails_and_harms_no_other(consuming: Consuming) -> None:
    @consuming.consumer("t", max_attempts=1, ordering="none")
    async def handle(delivery) -> None:
        if delivery.payload == "leaves":
            await sync_to_async(transaction.set_autocommit)(False)
        await write(delivery.payload)

    publish_many("t", ["leaves", 1, 2, 3])
    consuming.drain()
    assert effects() == ["1", "2", "3"]
    (dead_letter,) = dead_letters()
    assert dead_letter.last_error.startswith(
        "the handler returned and left the connection 'default' in a transaction, or with another autocommit"
    )


def test_their_database_calls_share_one_connection(consuming: Consuming) -> None:
    names: set[str] = set()

    @consuming.consumer("t", ordering="none")
    async def handle(delivery) -> None:
        names.add(await sync_to_async(lambda: threading.current_thread().name)())
        await write(delivery.payload)

    publish_many("t", range(20))
    consuming.drain()
    assert len(names) == 1
    wait_until(lambda: not threads("-loop-"))
