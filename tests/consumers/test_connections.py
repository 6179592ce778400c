"""No handler leaves a connection behind that would spoil the next delivery; one that was lost is replaced."""

import itertools

import pytest
from django.db import Error, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from sqlqueue import publish, publish_many
from sqlqueue.models import Message
from tests.app.models import Effect
from tests.consuming import QUICK, Consuming
from tests.processes import wait_until
from tests.servers.processlist import sessions
from tests.servers.session import connection_id

OTHER = "other"
BATCH = pytest.mark.parametrize("batch", [False, True], ids=["each", "batch"])
SERVERS = pytest.mark.database("mariadb", "mysql", "postgresql")


def switch_autocommit_off(alias: str) -> None:
    transaction.set_autocommit(False, using=alias)


def open_an_atomic_block(alias: str) -> None:
    transaction.atomic(using=alias).__enter__()


def begin_in_sql(alias: str) -> None:
    statement = "SET autocommit = 0" if connections[alias].vendor == "mysql" else "BEGIN"
    connections[alias].cursor().execute(statement)


def close_inside_an_atomic_block(alias: str) -> None:
    transaction.atomic(using=alias).__enter__()
    connections[alias].close()


WAYS = {
    "autocommit off": switch_autocommit_off,
    "atomic block": open_an_atomic_block,
    "plain SQL": begin_in_sql,
    "closed": close_inside_an_atomic_block,
}


@pytest.fixture(params=WAYS.values(), ids=WAYS.keys())
def leave(request: pytest.FixtureRequest):
    return request.param


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> str:
    """Another alias of the same database, of which Django's test cases know nothing and which they would refuse."""

    def ensure_connection(self: BaseDatabaseWrapper) -> None:
        if self.connection is None:
            with self.wrap_database_errors:
                self.connect()

    monkeypatch.setitem(connections.settings, OTHER, {**connections.settings["default"]})
    monkeypatch.setattr(BaseDatabaseWrapper, "ensure_connection", ensure_connection)
    return OTHER


def payloads(given) -> list[object]:
    return [delivery.payload for delivery in (given if isinstance(given, list) else [given])]


def effects() -> list[str]:
    return sorted(Effect.objects.values_list("value", flat=True))


def error_of_the_only_letter() -> str:
    return Message.objects.get(topic="t_dlq").last_error


@BATCH
def test_a_handler_that_leaves_a_transaction_open_has_failed_and_harms_no_other(
    consuming: Consuming, settings, leave, batch: bool
) -> None:
    """Without a look at it, what comes next in the thread would be acked, and rolled back with the connection."""
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1}

    @consuming.consumer("t", ordering="none", max_attempts=1, batch=batch, batch_size=1)
    def handle(given) -> None:
        if "leaves" in payloads(given):
            leave("default")
        else:
            Effect.objects.bulk_create(Effect(name="seen", value=str(number)) for number in payloads(given))

    publish_many("t", ["leaves", 1, 2, 3])
    consuming.drain(threads=1)
    assert effects() == ["1", "2", "3"]
    assert_said("default")


def assert_said(alias: str) -> None:
    said = f"the handler returned and left the connection '{alias}' in a transaction"
    assert error_of_the_only_letter().startswith(said)


def test_what_it_wrote_in_that_transaction_is_rolled_back(consuming: Consuming, leave) -> None:
    if leave is close_inside_an_atomic_block:
        pytest.skip("nothing can be written there")

    @consuming.consumer("t", max_attempts=1)
    def handle(delivery) -> None:
        leave("default")
        Effect.objects.create(name="seen", value="1")

    publish("t", 1)
    consuming.drain()
    assert effects() == []
    assert Message.objects.filter(topic="t_dlq").exists()


@BATCH
@pytest.mark.parametrize("atomic", [False, pytest.param(True, marks=SERVERS)])  # SQLite's one writer is the handler
def test_a_connection_to_another_database_is_looked_at_too(
    consuming: Consuming, other: str, leave, batch: bool, atomic: bool
) -> None:

    @consuming.consumer("t", ordering="none", max_attempts=1, batch=batch, batch_size=1, atomic=atomic)
    def handle(given) -> None:
        if "leaves" in payloads(given):
            leave(other)
        else:
            Effect.objects.using(other).create(name="seen", value="1")

    publish("t", "leaves")
    consuming.drain(threads=1)
    assert_said(other)
    publish_many("t", [1, 2])
    consuming.drain(threads=1)
    assert Message.objects.filter(topic="t_dlq").count() == 1


@BATCH
def test_an_atomic_handler_that_leaves_an_inner_block_open_is_rolled_back(consuming: Consuming, batch: bool) -> None:
    @consuming.consumer("t", ordering="none", max_attempts=1, batch=batch, batch_size=1, atomic=True)
    def handle(given) -> None:
        Effect.objects.bulk_create(Effect(name="seen", value=str(number)) for number in payloads(given))
        if "leaves" in payloads(given):
            transaction.atomic().__enter__()

    publish_many("t", ["leaves", 1, 2])
    consuming.drain(threads=1)
    assert effects() == ["1", "2"]
    assert_said("default")


def test_a_handler_that_raises_keeps_its_own_error(consuming: Consuming, leave) -> None:

    @consuming.consumer("t", ordering="none", max_attempts=1)
    def handle(delivery) -> None:
        if delivery.payload == "leaves":
            leave("default")
            raise ValueError("its own")
        Effect.objects.create(name="seen", value="1")

    publish("t", "leaves")
    publish("t", 1)
    consuming.drain(threads=1)
    assert "ValueError: its own" in error_of_the_only_letter()
    assert effects() == ["1"]


@SERVERS
@BATCH
@pytest.mark.parametrize("age", [0, None], ids=["young", "persistent"])
@pytest.mark.session
def test_a_connection_that_was_lost_while_idle_fails_no_delivery(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch, batch: bool, age: int | None
) -> None:
    """A KILL, a restart, a failover, an idle timeout: Django itself trusts a connection that has met no error yet."""
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", age)
    monkeypatch.setattr("sqlqueue.consumers.handlers.connections.CONNECTIONS_LAST", 0.0)  # as if time had passed
    seen: list[int] = []

    @consuming.consumer("t", max_attempts=1, batch=batch)
    def handle(given) -> None:
        Effect.objects.bulk_create(Effect(name="seen", value=str(number)) for number in payloads(given))
        seen.append(connection_id())

    consuming.start(threads=1)
    for number in itertools.count(1):
        publish("t", number)
        wait_until(lambda: len(seen) == number or Message.objects.filter(topic="t_dlq").exists())  # noqa: B023
        assert not Message.objects.filter(topic="t_dlq").exists()
        if number == 3:
            break
        sessions().end(seen[-1])


@SERVERS
@BATCH
@pytest.mark.session
def test_a_connection_that_is_lost_under_a_handler_costs_that_attempt_only(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch, batch: bool
) -> None:
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", None)
    swallowed: list[Error] = []

    @consuming.consumer("t", max_attempts=2, backoff=0, batch=batch, ordering="none")
    def handle(given) -> None:
        if not swallowed:
            killed.append(connection_id())
            wait_until(lambda: len(killed) == 2)
            try:
                Effect.objects.create(name="seen", value="lost")
            except Error as error:
                swallowed.append(error)
            return
        Effect.objects.bulk_create(Effect(name="seen", value=str(number)) for number in payloads(given))

    killed: list[int] = []
    consuming.start(threads=1)
    publish("t", 0)
    wait_until(lambda: killed)
    sessions().end(killed[0])
    killed.append(0)
    wait_until(lambda: swallowed)
    publish_many("t", [1, 2, 3])
    wait_until(lambda: len(effects()) == 3)
    assert not Message.objects.filter(topic="t_dlq").exists()
