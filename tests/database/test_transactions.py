"""Operations see what was committed before they had their locks, and what locks the gate is a transaction of its
own."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, connections, transaction

from sqlqueue import ConfigurationError, Delivery, NewMessage, Reject, publish, publish_many, testing
from sqlqueue.database.horizon import Horizon
from sqlqueue.leases.acquire import acquire
from sqlqueue.log import groups, schedule
from sqlqueue.log.collect import collect
from sqlqueue.models import Message, Offset
from sqlqueue.operations import replay, replay_requests, requests, reschedule
from sqlqueue.operations.move import move
from sqlqueue.operations.reschedule import republish
from tests.consuming import QUICK, Consuming
from tests.logs import LOG
from tests.management.running import run
from tests.processes import wait_until
from tests.servers.processlist import sessions
from tests.servers.session import isolate
from tests.transactions import OpenTransaction

pytestmark = pytest.mark.django_db(transaction=True)

ALIAS = "default"
LEVELS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """The isolation level of this thread's connection."""
    isolate(request.param)
    yield request.param
    connection.close()


@pytest.fixture
def log(consuming: Consuming, settings: Any) -> list[int]:
    """Topic t with five messages that group g has acked and one that died; what the group has handled."""
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1, "RETENTION": 0}
    handled: list[int] = []

    def handle(delivery: Delivery) -> None:
        if delivery.payload < 0:
            raise Reject("no")
        handled.append(delivery.payload)

    consuming.consumer("t", handle, group="g")
    publish_many("t", [NewMessage(number) for number in (0, 1, 2, 3, 4, -1)])
    testing.drain()
    return handled


OPERATIONS: dict[str, Callable[[], object]] = {
    "register": lambda: groups.register(LOG, "another", "t"),
    "remove": lambda: groups.remove(LOG, "g", "t"),
    "move": lambda: move(LOG, "g", "t", 0),
    "move of one partition": lambda: move(LOG, "g", "t", 0, 0),
    "acquire": lambda: acquire(LOG, "s", "g", "t", [0], priorities=1, lease_duration=60, horizon=0),
    "replay": lambda: replay.replay("t"),
    "ordered replay": lambda: (replay_requests.request_replay(LOG, "t"), requests.carry_out(LOG)),
    "republish": lambda: republish("t", "g", offsets()),
    "acknowledge": lambda: reschedule.acknowledge(LOG, "g", "t", offsets()),
    "reprioritize": lambda: reschedule.reprioritize(LOG, "g", "t", offsets(), 0),
    "collect": lambda: collect(LOG, known_horizon()),
    "schedule": lambda: (publish("t", 1, delay=0), schedule.move_due(LOG)),
}


def offsets() -> list[int]:
    return list(Message.objects.filter(topic="t").values_list("offset", flat=True))


def known_horizon() -> Horizon:
    horizon = Horizon(LOG)
    horizon.wait()
    return horizon


@pytest.mark.database("postgresql")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_reads_afresh_whatever_the_sessions_level_is(
    log: list[int], operation: str, level: str
) -> None:
    levels = set()

    def look(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if connection.in_atomic_block and "SAVEPOINT" not in sql:
            with connection.connection.cursor() as cursor:
                levels.add(cursor.execute("SHOW transaction_isolation").fetchone()[0])
        return execute(sql, params, many, context)

    with connection.execute_wrapper(look):
        OPERATIONS[operation]()
    assert levels == {"read committed"}
    with transaction.atomic(), connection.cursor() as cursor:  # the application's are as they were
        cursor.execute("SHOW transaction_isolation")
        assert cursor.fetchone()[0] == level.lower()


@pytest.mark.database("mariadb", "mysql")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_operation_takes_its_snapshot_before_it_has_its_locks(log: list[int], operation: str) -> None:
    """It is that of the first statement which locks nothing."""
    firsts: list[str] = []
    inside = [False]

    def look(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if connection.in_atomic_block and not inside[0] and "FROM" in sql.upper():
            firsts.append(sql)
        inside[0] = connection.in_atomic_block
        return execute(sql, params, many, context)

    with connection.execute_wrapper(look):
        OPERATIONS[operation]()
    assert firsts
    locking = ("FOR UPDATE", "FOR SHARE", "LOCK IN SHARE MODE")
    immutable = ("republish",)  # reads the log alone, which never changes
    assert operation in immutable or all(
        any(word in text for word in locking) or not text.lstrip().startswith("SELECT") for text in firsts
    )


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_collection_sees_the_reset_that_it_has_waited_for(log: list[int], level: str) -> None:
    horizon = known_horizon()
    with OpenTransaction() as person, ThreadPoolExecutor(1) as pool:
        person.do(lambda: groups.lock_topic(LOG, "t"))

        def run_collection() -> int:
            isolate(level)
            try:
                return collect(LOG, horizon).messages
            finally:
                connections.close_all()

        collected = pool.submit(run_collection)
        wait_until(lambda: sessions().waiting(), message="the collector does not wait")
        person.do(lambda: groups.revoke(LOG, "g", "t"))
        person.do(lambda: Offset.objects.filter(topic="t").update(position=0, claimed_to=0, offset_acked=0))
        person.commit()
        collected.result(60)
    assert Message.objects.filter(topic="t").count() == 6
    log.clear()
    testing.drain()
    assert log == [0, 1, 2, 3, 4]


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_what_its_owner_acks_meanwhile_is_not_reprioritized(
    consuming: Consuming, settings: Any, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    if level == "SERIALIZABLE" and connection.vendor == "mysql":
        pytest.skip("sqlqueue.E003: there every read locks, and the owner waits")
    settings.SQLQUEUE = {**QUICK, "TOPICS": {"t": {"partitions": 1, "priorities": 2}}}
    handled: list[object] = []
    consuming.consumer("t", lambda delivery: handled.append(delivery.payload), group="g")
    publish("t", "first")
    testing.drain()
    offset = publish("t", "second").offset
    assert offset is not None
    revoke = reschedule.revoke

    def owner() -> None:
        testing.drain()
        connections.close_all()

    def revoke_late(*place: Any, **options: Any) -> None:
        with ThreadPoolExecutor(1) as another:
            another.submit(owner).result(60)
        revoke(*place, **options)

    monkeypatch.setattr(reschedule, "revoke", revoke_late)
    assert reschedule.reprioritize(LOG, "g", "t", [offset], 1) == (0, 1)
    testing.drain()
    assert handled == ["first", "second"]


class TestWithoutAutocommit:
    @pytest.fixture
    def off(self) -> Iterator[None]:
        transaction.set_autocommit(False)
        yield
        transaction.rollback()
        transaction.set_autocommit(True)

    @pytest.mark.database("mariadb", "mysql", "postgresql")
    def test_the_gate_is_not_probed_and_no_publisher_is_held_up(self, log: list[int], off: None) -> None:
        with pytest.raises(ConfigurationError, match="autocommit is off"):
            groups.register(LOG, "another", "t", groups.LATEST)
        with pytest.raises(ConfigurationError, match="autocommit is off"):
            move(LOG, "g", "t", 0)
        with OpenTransaction() as another:
            another.do(lambda: publish("t", 5))
            another.commit()

    def test_a_consumer_does_not_start(self, consuming: Consuming, off: None) -> None:
        consuming.consumer("t", lambda delivery: None)
        with pytest.raises(ConfigurationError, match="a consumer cannot run while autocommit is off"):
            testing.drain()

    def test_runconsumers_does_not_start(self, log: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(connections.settings[ALIAS], "AUTOCOMMIT", False)
        said = run("runconsumers", "--noreload")
        assert said.code == 1
        assert "sqlqueue.E023" in said.err
        assert "Leave AUTOCOMMIT out" in said.err


def test_a_consumer_does_not_start_inside_a_transaction(consuming: Consuming) -> None:
    consuming.consumer("t", lambda delivery: None)
    with pytest.raises(ConfigurationError, match="a consumer cannot run inside a transaction"), transaction.atomic():
        testing.drain()
