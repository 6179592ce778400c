"""An atomic handler whose transaction has ended under it is not acked, whatever it made of the error."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

import pytest
from django.db import Error, connection, transaction

from sqlqueue import publish
from sqlqueue.models import Message
from sqlqueue.testing import drain
from tests.app.models import Effect
from tests.consuming import Consuming
from tests.counting import OF_A_CONNECTION
from tests.logs import LOG
from tests.processes import wait_until
from tests.servers.processlist import sessions
from tests.servers.session import connection_id
from tests.transactions import OpenTransaction

BATCH = pytest.mark.parametrize("batch", [False, True], ids=["each", "batch"])
TABLE = Effect._meta.db_table


def seen() -> list[str]:
    return list(Effect.objects.filter(name="seen").order_by("id").values_list("value", flat=True))


def write(value: str) -> None:
    Effect.objects.create(name="seen", value=value)


def change(name: str) -> None:
    """In plain SQL: of an error in its own writes Django remembers that the block is to be rolled back."""
    LOG.execute(f"UPDATE {TABLE} SET value = 'changed' WHERE name = %s", (name,))


def dead_letter() -> str:
    return Message.objects.get(topic="t_dlq").last_error


class Rival:
    """A transaction that stands in a deadlock with its caller's, and is not the one that the server ends."""

    def __init__(self) -> None:
        Effect.objects.bulk_create([Effect(name="first"), Effect(name="second")])
        Effect.objects.bulk_create(Effect(name="weight") for _ in range(200))

    def meet(self) -> Error:
        """Return the error of the deadlock."""
        change("first")
        if connection.vendor == "postgresql":
            LOG.execute("SET LOCAL deadlock_timeout = '10ms'")
        with OpenTransaction() as other:
            if connection.vendor == "postgresql":
                other.do(lambda: LOG.execute("SET LOCAL deadlock_timeout = '60s'"))
            other.do(lambda: change("weight"))  # InnoDB ends the transaction that has changed less
            other.do(lambda: change("second"))
            session = other.do(connection_id)
            waiting = other.start(lambda: change("first"))
            self._wait_for(session)
            with pytest.raises(Error) as met:
                change("second")
            waiting.result(60)
        return met.value

    def _wait_for(self, session: int) -> None:
        def look() -> None:
            wait_until(lambda: session in sessions().waiting())
            connection.close()

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()


@pytest.mark.database("mariadb", "mysql", "postgresql")
@BATCH
def test_a_deadlock_that_a_handler_swallows_fails_the_attempt(consuming: Consuming, batch: bool) -> None:
    """The server has rolled back what it wrote; it would be acked without."""
    met: list[Error] = []
    rival = Rival()

    @consuming.consumer("t", atomic=True, batch=batch, max_attempts=2, backoff=0)
    def handle(given) -> None:
        write("before")
        if not met:
            met.append(rival.meet())
        with suppress(Error):
            write("after")

    publish("t", 1)
    consuming.drain()
    assert len(met) == 1
    assert seen() == ["before", "after"]
    assert not Message.objects.filter(topic="t_dlq").exists()


@pytest.mark.database("mariadb", "mysql")
@BATCH
def test_ddl_which_commits_what_was_written_before_fails_the_attempt(consuming: Consuming, batch: bool) -> None:
    @consuming.consumer("t", atomic=True, batch=batch, max_attempts=1)
    def handle(given) -> None:
        LOG.execute("CREATE TABLE IF NOT EXISTS made_by_a_handler (n INT)")
        write("after")

    publish("t", 1)
    try:
        consuming.drain()
    finally:
        LOG.execute("DROP TABLE IF EXISTS made_by_a_handler")
    assert seen() == []
    assert "its transaction had ended before" in dead_letter()


def roll_back_in_sqlite() -> None:
    there = Effect.objects.values_list("id", flat=True)[0]
    with pytest.raises(Error):
        LOG.execute(f"INSERT OR ROLLBACK INTO {TABLE} (id, name, value, created) VALUES ({there}, '', '', '')")


def roll_back_in_sqlite_and_begin_anew() -> None:
    roll_back_in_sqlite()
    LOG.execute("BEGIN")


@pytest.mark.database("sqlite")
@BATCH
@pytest.mark.parametrize("way", [roll_back_in_sqlite, roll_back_in_sqlite_and_begin_anew])
def test_an_error_that_rolls_back_on_sqlite_fails_the_attempt(
    consuming: Consuming, batch: bool, way: Callable[[], None]
) -> None:
    Effect.objects.create(name="there")

    @consuming.consumer("t", atomic=True, batch=batch, max_attempts=1)
    def handle(given) -> None:
        write("before")
        way()

    publish("t", 1)
    consuming.drain()
    assert seen() == []
    assert "transaction" in dead_letter()


def fail() -> None:
    with pytest.raises(Error):
        LOG.execute("SELECT 1 / 0")


def commit() -> None:
    LOG.execute("COMMIT")


def commit_and_go_on() -> None:
    commit()
    write("after")


def roll_back_and_go_on() -> None:
    LOG.execute("ROLLBACK")
    write("after")


@pytest.mark.database("postgresql")
@BATCH
@pytest.mark.parametrize("way", [fail, commit, commit_and_go_on, roll_back_and_go_on])
def test_a_transaction_that_fails_or_is_ended_in_sql_on_postgresql_fails_the_attempt(
    consuming: Consuming, batch: bool, way: Callable[[], None]
) -> None:
    @consuming.consumer("t", atomic=True, batch=batch, max_attempts=1)
    def handle(given) -> None:
        way()

    publish("t", 1)
    consuming.drain()
    assert seen() == []
    assert "transaction" in dead_letter()


@BATCH
def test_an_error_in_a_block_of_its_own_is_no_harm(consuming: Consuming, batch: bool) -> None:
    Effect.objects.create(id=1, name="there")

    @consuming.consumer("t", atomic=True, batch=batch, max_attempts=1)
    def handle(given) -> None:
        write("before")
        with pytest.raises(Error), transaction.atomic():
            Effect.objects.create(id=1, name="there too")
        write("after")

    publish("t", 1)
    consuming.drain()
    assert seen() == ["before", "after"]


@BATCH
def test_a_handler_that_asks_for_a_rollback_is_not_acked(consuming: Consuming, batch: bool) -> None:
    @consuming.consumer("t", atomic=True, batch=batch, max_attempts=1)
    def handle(given) -> None:
        write("before")
        transaction.set_rollback(True)

    publish("t", 1)
    consuming.drain()
    assert seen() == []
    assert "TransactionManagementError" in dead_letter()


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("consuming")
def test_how_many_statements_an_atomic_delivery_costs(consuming: Consuming) -> None:
    """Besides its BEGIN and COMMIT, and the handler's own."""
    statements: list[str] = []

    def record(execute, sql, parameters, many, context):
        statements.append(" ".join(sql.replace('"', "").replace("`", "").split()))
        return execute(sql, parameters, many, context)

    @consuming.consumer("t", atomic=True)
    def handle(delivery) -> None:
        statements.append("the handler")

    publish("t", 1)
    with connection.execute_wrapper(record):
        drain()
    statements = [sql for sql in statements if not any(look in sql for look in OF_A_CONNECTION)]
    at = statements.index("the handler")
    before = 1
    after = 2 if connection.vendor == "postgresql" else 3
    own = statements[at - before : at] + statements[at + 1 : at + 1 + after]
    begun, ended = own[0], own[1:]
    assert begun.startswith("SELECT TRANSACTION_TIMESTAMP" if connection.vendor == "postgresql" else "SAVEPOINT")
    if connection.vendor != "postgresql":
        assert ended.pop(0).startswith("RELEASE SAVEPOINT")
    assert ended[0].startswith("SELECT position")
    assert ended[1].startswith("INSERT INTO sqlqueue_delivery_state")
    assert not statements[at + 1 + after].startswith(("SELECT acked", "RELEASE", "INSERT INTO sqlqueue_delivery_state"))
