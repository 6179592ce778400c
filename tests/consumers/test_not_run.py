"""A handler whose call runs none of its code is never taken for one that has handled its message."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async

from sqlqueue import Batch, ConfigurationError, periodic, publish, publish_many, subscribe
from sqlqueue.consumers.declare.registry import registry
from sqlqueue.core.periodic import PERIODIC_TOPIC
from sqlqueue.exceptions import InvalidResult, NotRun
from sqlqueue.models import Message
from sqlqueue.testing import drain
from tests.app.models import Effect
from tests.consuming import Consuming, states

pytestmark = pytest.mark.once

ran: list[str] = []

Handler = Callable[[Any], Any]


def around(function: Handler) -> Handler:
    """Any decorator of a project."""

    @functools.wraps(function)
    def inner(given: Any) -> Any:
        return function(given)

    return inner


async def later(given: Any) -> None:
    ran.append("later")


def stepwise(given: Any) -> Any:
    ran.append("stepwise")
    yield


async def async_stepwise(given: Any) -> Any:
    ran.append("async_stepwise")
    yield


class Later:
    async def __call__(self, given: Any) -> None:
        ran.append("Later")


class Stepwise:
    def __call__(self, given: Any) -> Any:
        yield


UNRUN: dict[str, Handler] = {
    "a decorated async def": around(later),
    "a lambda": lambda given: later(given),
    "a decorated object": around(Later()),
    "a decorated generator": around(stepwise),
    "a decorated async generator": around(async_stepwise),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "each": {},
    "batch": {"batch": True},
    "atomic": {"atomic": True},
    "atomic batch": {"atomic": True, "batch": True},
    "grouped": {"atomic": True, "commit_every": 10},
    "kept": {"keep_results": timedelta(days=1)},
}


@pytest.fixture(autouse=True)
def nothing_has_run() -> None:
    ran.clear()


def letters() -> dict[Any, str]:
    """The errors of dead letters, by payload."""
    return dict(Message.objects.filter(topic="t_dlq").values_list("payload", "last_error"))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("handler", UNRUN.values(), ids=UNRUN)
def test_what_returns_code_that_has_not_run_gets_dead_letters_that_say_so(
    consuming: Consuming, handler: Handler, options: dict[str, Any]
) -> None:
    calls: list[Any] = []

    @consuming.consumer("t", **options)
    def handle(given: Any) -> Any:
        calls.append(given)
        return handler(given)

    publish_many("t", ["one", "two", "three"])
    consuming.drain()
    assert set(letters()) == {"one", "two", "three"}
    assert all("none of its code has run" in error and "handle returned a" in error for error in letters().values())
    assert len(calls) <= 6  # not tried again; those that share a transaction with one that fails are
    assert ran == []
    assert states("t") == []


def test_what_it_has_written_in_its_own_transaction_is_rolled_back(consuming: Consuming) -> None:
    @consuming.consumer("t", atomic=True)
    def handle(delivery: Any) -> Any:
        Effect.objects.create(name="half")
        return later(delivery)

    publish("t", "one")
    consuming.drain()
    assert set(letters()) == {"one"}
    assert not Effect.objects.exists()


@pytest.mark.parametrize("batch", [False, True])
def test_an_async_handler_that_returns_another_awaitable_has_not_run_it(consuming: Consuming, batch: bool) -> None:
    @consuming.consumer("t", batch=batch)
    async def handle(given: Any) -> Any:
        await asyncio.sleep(0)
        return later(given)

    publish_many("t", [1, 2])
    consuming.drain()
    assert len(letters()) == 2
    assert ran == []


class Partial:
    """A bound method."""

    async def handle(self, word: str, given: Any) -> None:
        ran.append(word)


@pytest.mark.parametrize(
    "handler",
    [Later(), sync_to_async(lambda given: ran.append("synced")), functools.partial(Partial().handle, "partial")],
    ids=["object", "sync_to_async", "partial"],
)
def test_what_shows_that_it_is_async_is_awaited(consuming: Consuming, handler: Handler) -> None:
    consuming.consumer("t", handler)
    publish("t", {})
    consuming.drain()
    assert len(ran) == 1
    assert letters() == {}
    with pytest.raises(ConfigurationError, match="async and atomic"):
        consuming.consumer("u", handler, atomic=True)


def test_a_plain_function_that_runs_what_is_async_is_a_handler(consuming: Consuming) -> None:
    @consuming.consumer("t")
    @functools.wraps(later)
    def handle(delivery: Any) -> None:
        async_to_sync(later)(delivery)

    publish("t", {})
    consuming.drain()
    assert ran == ["later"]
    assert letters() == {}


@pytest.mark.parametrize("handler", [Stepwise(), functools.partial(stepwise), async_stepwise])
def test_what_shows_that_it_is_a_generator_is_refused(consuming: Consuming, handler: Handler) -> None:
    with pytest.raises(ConfigurationError, match="is a generator"):
        consuming.consumer("t", handler)
    assert not registry.consumers


def test_a_test_hears_of_it_as_of_an_error(consuming: Consuming) -> None:
    consuming.consumer("t", around(later))
    publish("t", "one")
    with pytest.raises(NotRun, match="coroutine of later"):
        drain(raise_errors=True)
    assert set(letters()) == {"one"}


def test_a_periodic_job_is_a_handler(consuming: Consuming) -> None:
    periodic(every=1, name="hourly")(around(later))
    drain(ahead=1.5)
    assert ran == []
    assert Message.objects.dead_letters(topic=PERIODIC_TOPIC).exists()


def test_a_callback_of_a_batch_is_a_handler(consuming: Consuming) -> None:
    consuming.consumer("members", lambda delivery: None)
    consuming.consumer("t", around(later))
    with Batch(on_finish=("t", "finished")) as batch:
        batch.publish("members", {})
    drain()
    assert set(letters()) == {"finished"}


def test_a_pulled_delivery_is_not_acked_with_what_has_not_run(consuming: Consuming) -> None:
    publish("t", {})
    with subscribe("t", keep_results=timedelta(days=1)) as deliveries:
        delivery = next(iter(deliveries))
        with pytest.raises(InvalidResult, match="coroutine"):
            delivery.ack(unrun := later(delivery))
        unrun.close()
        assert not delivery.settled
