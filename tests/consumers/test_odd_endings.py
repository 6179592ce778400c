"""However oddly a handler ends, its message is settled as a failed one, and its thread goes on."""

import asyncio
import sys
import threading
from collections.abc import Callable

import pytest
from django.db import connection, connections, transaction

from sqlqueue import publish_many
from sqlqueue.models import Message
from tests.app.models import Effect
from tests.consuming import Consuming, states


def recurse() -> None:
    recurse()


def throw(error: BaseException) -> Callable[[], None]:
    def thrower() -> None:
        raise error

    return thrower


ODD: dict[str, Callable[[], object]] = {
    "exit": lambda: sys.exit(3),
    "interrupt": throw(KeyboardInterrupt()),
    "generator": throw(GeneratorExit()),
    "memory": throw(MemoryError()),
    "recursion": recurse,
    "stop": throw(StopIteration()),
    "cancelled": throw(asyncio.CancelledError()),
}
if sys.version_info >= (3, 11):
    ODD["group"] = throw(ExceptionGroup("several", [ValueError("one"), KeyError("other")]))  # noqa: F821
IN_A_TRANSACTION: dict[str, Callable[[], object]] = {
    "rollback": lambda: transaction.set_rollback(True),
    "close": connection.close,
    "close all": connections.close_all,
}


def dead() -> dict[str, int]:
    return dict(Message.objects.filter(topic="t_dlq").values_list("payload", "failure_count"))


@pytest.mark.parametrize("atomic", [False, True])
def test_of_a_handler_in_a_thread(consuming: Consuming, atomic: bool) -> None:
    odd = {**ODD, **IN_A_TRANSACTION} if atomic else ODD

    @consuming.consumer("t", ordering="none", max_attempts=2, backoff=0, atomic=atomic)
    def handle(delivery) -> None:
        Effect.objects.create(name="seen", value=delivery.payload)
        odd.get(delivery.payload, lambda: None)()

    publish_many("t", ["first", *odd, "last"])
    consuming.drain(threads=1)
    assert dead() == dict.fromkeys(odd, 2)
    values = set(Effect.objects.values_list("value", flat=True))
    assert values == ({"first", "last"} if atomic else {"first", *odd, "last"})
    assert states("t") == []


def test_of_a_handler_on_the_event_loop(consuming: Consuming) -> None:
    seen: list[str] = []

    @consuming.consumer("t", ordering="none", max_attempts=2, backoff=0)
    async def handle(delivery) -> None:
        await asyncio.sleep(0)
        ODD.get(delivery.payload, lambda: seen.append(delivery.payload))()

    publish_many("t", ["first", *ODD, "last"])
    consuming.drain()
    assert sorted(seen) == ["first", "last"]
    assert dead() == dict.fromkeys(ODD, 2)
    assert not [thread for thread in threading.enumerate() if "-loop-" in thread.name]
