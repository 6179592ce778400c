"""max_attempts=None, retry_for, reject_for and a function as backoff: of every kind of handler, and of subscribe()."""

import contextlib
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, IntegrityError, OperationalError, connection, transaction

from sqlqueue import ConfigurationError, Retry, publish, publish_many, subscribe
from sqlqueue.consumers.handlers import atomic as atomic_executor
from sqlqueue.database import retries
from sqlqueue.database.error_codes import ErrorKind
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.models import DeliveryState, Message
from tests.consuming import QUICK, Consuming, seconds_until_due, states
from tests.logs import LOG
from tests.processes import wait_until

TIMEOUT = 60
ERRORS: dict[str, type[Exception]] = {"gone": FileNotFoundError, "broken": ValueError, "late": TimeoutError}
KINDS = ["plain", "atomic", "async"]


def fail(payload: str) -> None:
    if payload in ERRORS:
        raise ERRORS[payload](payload)
    if payload == "retry":
        raise Retry("again", delay=0)


def failing(kind: str, attempts: dict[str, int]) -> Any:
    """A handler that notes the attempt, and fails as its payload says."""

    def handle(delivery) -> None:
        attempts[delivery.payload] = delivery.attempt
        fail(delivery.payload)

    async def handle_async(delivery) -> None:
        handle(delivery)

    return handle_async if kind == "async" else handle


def dead(topic: str = "t_dlq") -> dict[str, int]:
    """The attempts of each dead letter, by its payload."""
    return dict(Message.objects.filter(topic=topic).values_list("payload", "failure_count"))


@pytest.mark.parametrize("kind", KINDS)
def test_reject_for_wins_over_retry_for_and_all_others_are_rejected(consuming: Consuming, kind: str) -> None:
    attempts: dict[str, int] = {}
    options = {"retry_for": OSError, "reject_for": (FileNotFoundError,), "max_attempts": 3, "backoff": 0}
    consuming.consumer("t", failing(kind, attempts), atomic=kind == "atomic", ordering="none", **options)
    publish_many("t", [*ERRORS, "retry", "fine"])
    consuming.drain()
    assert attempts == {"gone": 1, "broken": 1, "late": 3, "retry": 3, "fine": 1}
    assert dead() == {"gone": 1, "broken": 1, "late": 3, "retry": 3}
    assert not states("t")


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_bound_it_is_retried_until_it_succeeds(consuming: Consuming, kind: str) -> None:
    attempts: list[int] = []

    def handle(delivery) -> None:
        attempts.append(delivery.attempt)
        if delivery.attempt < 12:
            raise ValueError

    async def handle_async(delivery) -> None:
        handle(delivery)

    handler = handle_async if kind == "async" else handle
    consuming.consumer("t", handler, atomic=kind == "atomic", max_attempts=None, backoff=0)
    publish("t", 1)
    consuming.drain()
    assert attempts == list(range(1, 13))
    assert not states("t")
    assert not dead()


@pytest.mark.parametrize("atomic", [False, True])
def test_of_a_batch_only_the_message_is_rejected_that_fails_alone(
    consuming: Consuming, settings: Any, atomic: bool
) -> None:
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1}
    done: list[str] = []

    @consuming.consumer("t", batch=True, atomic=atomic, reject_for=ValueError, backoff=0)
    def handle(deliveries) -> None:
        for delivery in deliveries:
            fail(delivery.payload)
        done.extend(delivery.payload for delivery in deliveries)

    publish_many("t", ["one", "two", "broken", "three"])
    consuming.drain()
    assert sorted(done) == ["one", "three", "two"]
    assert dead() == {"broken": 1}


def test_a_lost_connection_of_an_atomic_handler_is_retried_whatever_retry_for_names(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ack is in its transaction too, so that the handler need not have anything to do with it."""
    attempts: list[int] = []

    @consuming.consumer("t", atomic=True, retry_for=TimeoutError, backoff=0)
    def handle(delivery) -> None:
        attempts.append(delivery.attempt)
        if delivery.attempt == 1:
            raise OperationalError("the server has gone away")
        raise IntegrityError("a row that there is")

    real = retries.classify
    lost = lambda error: ErrorKind.GONE if "gone away" in str(error) else real(error)  # noqa: E731
    monkeypatch.setattr(retries, "classify", lost)
    publish("t", "x")
    consuming.drain()
    assert attempts == [1, 2]
    assert dead() == {"x": 2}


def test_a_transaction_that_cannot_be_begun_is_retried_whatever_retry_for_names(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler has not run."""
    attempts: list[int] = []

    @consuming.consumer("t", atomic=True, retry_for=TimeoutError, backoff=0)
    def handle(delivery) -> None:
        attempts.append(delivery.attempt)

    class Broken:
        """Fails once, as a database does whose disk is full."""

        left = 1

        def __enter__(self) -> None:
            if sys._getframe(1).f_code.co_filename == atomic_executor.__file__:
                self.left -= 1
                if self.left >= 0:
                    raise OperationalError("no space left on device")

        def __exit__(self, *_: object) -> None: ...

    broken = Broken()
    monkeypatch.setattr(type(LOG.dialect), "writers", broken)
    publish("t", "x")
    consuming.drain()
    assert broken.left < 0
    assert attempts == [1]  # no attempt is charged
    assert not dead()


def fail_and_refuse_all_others() -> None:
    with contextlib.suppress(IntegrityError), transaction.atomic(savepoint=False):
        raise IntegrityError


def fail_in_the_server() -> None:
    with contextlib.suppress(DatabaseError), connection.cursor() as cursor:
        cursor.execute("SELECT no_such_column")


@pytest.mark.parametrize("swallow", [fail_and_refuse_all_others, fail_in_the_server])
def test_a_transaction_that_refuses_the_ack_is_retried_whatever_retry_for_names(
    consuming: Consuming, swallow: Callable[[], None]
) -> None:
    """The error that the handler has swallowed may have been a deadlock."""
    attempts: list[int] = []

    @consuming.consumer("t", atomic=True, retry_for=TimeoutError, backoff=0)
    def handle(delivery) -> None:
        attempts.append(delivery.attempt)
        if delivery.attempt == 1:
            swallow()

    publish("t", "x")
    consuming.drain()
    tolerant = swallow is fail_in_the_server and connection.vendor != "postgresql"  # the transaction goes on
    assert attempts == ([1] if tolerant else [1, 2])
    assert not dead()


def test_a_visibility_timeout_is_retried_whatever_retry_for_names(consuming: Consuming) -> None:
    attempts: list[int] = []
    gate = consuming.gate()

    @consuming.consumer("t", retry_for=OSError, visibility_timeout=0.2, backoff=0)
    def handle(delivery) -> None:
        attempts.append(delivery.attempt)
        if delivery.attempt == 1:
            gate.wait(TIMEOUT)

    publish("t", 1)
    host = consuming.start()
    wait_until(lambda: attempts == [1, 2] and not states("t"))
    gate.set()
    host.stop()
    assert not dead()


@pytest.mark.parametrize("kind", KINDS)
def test_a_function_as_backoff_gets_the_attempt_and_the_error(consuming: Consuming, kind: str) -> None:
    asked: list[tuple[int, str]] = []

    def wait(attempt: int, error: BaseException) -> timedelta:
        asked.append((attempt, type(error).__name__))
        return timedelta(hours=attempt)

    consuming.consumer("t", failing(kind, {}), atomic=kind == "atomic", backoff=wait)
    offset = publish("t", "late").offset
    for attempt in (1, 2):
        consuming.drain()
        assert 3_500 * attempt < seconds_until_due(offset) <= 3_600 * attempt + 0.1
        DeliveryState.objects.update(invisible_until=DatabaseNow())
    assert asked == [(1, "TimeoutError"), (2, "TimeoutError")]


def test_a_function_that_fails_costs_no_message(consuming: Consuming) -> None:
    attempts: dict[str, int] = {}

    def wait(attempt: int) -> float:
        raise LookupError("no table")

    consuming.consumer("t", failing("plain", attempts), backoff=wait)
    publish("t", "late")
    publish("t", "fine")
    consuming.drain()
    assert attempts["fine"] == 1
    row = DeliveryState.objects.get()
    assert 0 < seconds_until_due(row.message_offset) <= 1.4
    assert "LookupError('no table')" in (row.last_error or "")
    assert (row.last_error or "").endswith("TimeoutError: late")


def test_a_pulled_delivery_fails_as_a_handlers_does(consuming: Consuming) -> None:
    options = {"retry_for": OSError, "reject_for": FileNotFoundError, "max_attempts": None, "ordering": "none"}
    attempts: dict[str, int] = {}
    publish_many("t", [*ERRORS, "fine"])
    with subscribe("t", timeout=TIMEOUT, backoff=lambda attempt, error: 0, **options) as deliveries:
        for delivery in deliveries:
            attempts[delivery.payload] = delivery.attempt
            try:
                if delivery.attempt < 7:
                    fail(delivery.payload)
                delivery.ack()
            except Exception as error:
                delivery.fail(error)
                delivery.fail(error)
                with pytest.raises(ConfigurationError, match=r"settled already, by fail\(\)"):
                    delivery.ack()
            if attempts.get("late") == 7 and len(attempts) == 4:
                break
    assert attempts == {"gone": 1, "broken": 1, "late": 7, "fine": 1}
    assert dead() == {"gone": 1, "broken": 1}


@pytest.mark.parametrize("error", [None, "broken", ValueError])
def test_a_pulled_delivery_fails_with_an_exception_only(consuming: Consuming, error: Any) -> None:
    publish("t", 1)
    with subscribe("t", timeout=TIMEOUT) as deliveries:
        delivery = next(iter(deliveries))
        with pytest.raises(ConfigurationError, match=r"fail\(\) needs the exception"):
            delivery.fail(error)
        assert not delivery.settled
        delivery.ack()
