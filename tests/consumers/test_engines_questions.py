"""What the engine asks the server after a handler has ended, and what ends an execution, is no attempt's error: the
work is not done again, and nothing stays in flight."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection

from sqlqueue import HandOver, call, get_status, publish
from sqlqueue.consumers.handlers.executor import HandlerExecutor
from sqlqueue.contrib.people.models import WorkItem
from sqlqueue.models import Result
from tests.consuming import Consuming
from tests.processes import wait_until
from tests.servers.session import connection_id, end_connection

pytestmark = pytest.mark.django_db(transaction=True)

LARGE = "x" * 100_000  # so large that MySQL is asked whether it takes that
DAY = timedelta(days=1)


def lose_connection() -> None:
    """Let the server end this thread's connection, which does not know of it."""

    def end(number: int) -> None:
        try:
            end_connection(number)
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as other:
        other.submit(end, connection_id()).result()


class Losing:
    """A handler that loses its connection the first time."""

    def __init__(self) -> None:
        self.attempts: list[int] = []

    def begin(self, attempt: int) -> None:
        self.attempts.append(attempt)
        if len(self.attempts) == 1:
            lose_connection()


def state(id: str = "one") -> tuple[str, int]:
    status = get_status("t", id=id, key="a")
    assert status is not None
    return status.groups["default"].state, status.groups["default"].attempts


@pytest.mark.database("mariadb", "mysql")
@pytest.mark.parametrize("how", ["returned", "replied", "handed over"])
@pytest.mark.parametrize("kind", ["sync", "async", "atomic", "grouped"])
def test_a_connection_that_is_lost_when_a_handler_has_ended_charges_nothing(
    consuming: Consuming, kind: str, how: str
) -> None:
    losing = Losing()

    def end(delivery: Any) -> Any:
        if how == "replied":
            delivery.reply(LARGE)
        if how == "handed over":
            raise HandOver("see", form={"text": LARGE})
        return LARGE

    def handle(delivery: Any) -> Any:
        losing.begin(delivery.attempt)
        return end(delivery)

    async def handle_async(delivery: Any) -> Any:
        await sync_to_async(losing.begin)(delivery.attempt)
        return end(delivery)

    options = {"atomic": kind in ("atomic", "grouped"), **({"commit_every": 10} if kind == "grouped" else {})}
    consuming.consumer("t", handle_async if kind == "async" else handle, max_attempts=1, keep_results=DAY, **options)
    publish("t", 1, key="a", id="one")
    consuming.drain(threads=1)
    assert losing.attempts == ([1, 1] if options["atomic"] else [1])  # a transaction that is rolled back runs again
    assert state()[0] == "acked"
    if how == "handed over":
        assert WorkItem.objects.get().form == {"text": LARGE}
    else:
        assert Result.objects.get().result == LARGE


@pytest.mark.database("mariadb", "mysql")
def test_a_connection_that_is_lost_before_the_replies_of_a_batch_are_stored_charges_nothing(
    consuming: Consuming,
) -> None:
    losing = Losing()

    async def handle(deliveries: Any) -> None:
        deliveries[0].reply(LARGE)
        await sync_to_async(losing.begin)(deliveries[0].attempt)

    consuming.consumer("t", handle, batch=True, max_attempts=1)
    consuming.start()
    assert call("t", 1, timeout=30, key="a") == LARGE
    assert losing.attempts == [1]


@pytest.mark.parametrize("kind", ["sync", "async", "batch"])
def test_an_execution_that_an_error_of_the_engines_own_ends_is_run_again(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Otherwise its messages would be in flight for as long as the process lives."""
    attempts: list[int] = []
    ended: list[Any] = []

    def handle(delivery: Any) -> None:
        attempts.extend(each.attempt for each in (delivery if kind == "batch" else [delivery]))

    async def handle_async(delivery: Any) -> None:
        handle(delivery)

    def begin(execution: Any) -> None:
        if not ended:
            ended.append(execution)
            assert execution.start_next() is not None
            raise RuntimeError("of the engine")

    run, run_async = HandlerExecutor.run, HandlerExecutor.run_async

    def runs(self: HandlerExecutor, execution: Any, report: Any) -> None:
        begin(execution)
        run(self, execution, report)

    async def runs_async(self: HandlerExecutor, execution: Any, report: Any) -> None:
        begin(execution)
        await run_async(self, execution, report)

    monkeypatch.setattr(HandlerExecutor, "run", runs)
    monkeypatch.setattr(HandlerExecutor, "run_async", runs_async)
    consuming.consumer("t", handle_async if kind == "async" else handle, max_attempts=1, batch=kind == "batch")
    for id in ("one", "two"):
        publish("t", 1, key="a", id=id)
    host = consuming.start()
    wait_until(lambda: [state(id)[0] for id in ("one", "two")] == ["acked", "acked"])
    assert attempts == [1, 1]
    wait_until(lambda: not len(host.subscriber.in_flight))


def test_an_atomic_handlers_process_ends_without_a_table_of_its_transactions(consuming: Consuming) -> None:
    consuming.consumer("t", lambda delivery: 1, atomic=True, max_attempts=1, keep_results=DAY)
    host = consuming.start()
    table = Result._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} RENAME TO {table}_away")
    try:
        publish("t", 1, key="a", id="one")
        host.join()
        assert host.subscriber.failed
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE {table}_away RENAME TO {table}")
    assert state() == ("waiting", 0)
