"""PostgreSQL's publish gate: one advisory lock, held before an offset is taken, and looked at by who probes."""

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection, connections

from sqlqueue import NewMessage, publish, publish_many
from sqlqueue.database.gate import insert_failed, insert_many, insert_new
from sqlqueue.database.horizon import Horizon, highest_offset
from sqlqueue.database.insert_sql import ADVISORY, FailedRow, LogRow, Stored
from sqlqueue.models import Message
from tests.logs import LOG
from tests.processes import wait_until
from tests.servers.private import PrivateServer
from tests.transactions import OpenTransaction

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database("postgresql")]


def ask(sql: str, *values: object, fetch: bool = True) -> object:
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return cursor.fetchone()[0] if fetch else None


def offsets_taken() -> object:
    """Return the last offset that any transaction has been given."""
    return ask("SELECT PG_SEQUENCE_LAST_VALUE(PG_GET_SERIAL_SEQUENCE('sqlqueue_message', 'offset'))")


FAILED = FailedRow(1, "no", "t", 1, "g", "no")


def bury() -> None:
    insert_failed(LOG, LogRow("t_dlq", 0, 0, "", "g:1", "1", None, ""), FAILED)


def copied() -> LogRow:
    """A message whose payload the server itself copies from another one."""
    first = Message.objects.earliest("offset")
    return LogRow("t", 0, 0, "", "copy", Stored("sqlqueue_message", "offset", first.offset), None, "")


WAYS: dict[str, Callable[[], object]] = {
    "one": lambda: publish("t", 1),
    "one that may be there": lambda: publish("t", 1, id="x"),
    "many": lambda: publish_many("t", [1, 2, 3]),
    "many that may be there": lambda: publish_many("t", [NewMessage(n, id=f"x{n}") for n in range(3)]),
    "a dead letter": bury,
    "a copy": lambda: insert_many(LOG, [copied()]),
    "a copy that may be there": lambda: insert_new(LOG, [copied()], tell=False),
    "a dead letter that is a copy": lambda: insert_failed(LOG, copied(), FAILED),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bound", [False, True], ids=["values in the text", "values bound by the server"])
@pytest.mark.session
def test_its_lock_is_held_before_an_offset_is_taken(way: str, bound: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "server_side_binding", bound)
    publish("t", 0)
    before = offsets_taken()
    ask("SELECT PG_ADVISORY_LOCK(%s, 0)::text", ADVISORY)
    try:
        with OpenTransaction() as transaction:
            done = transaction.start(WAYS[way])
            wait_until(lambda: ask("SELECT COUNT(*) FROM pg_locks WHERE classid = %s AND NOT granted", ADVISORY))
            assert offsets_taken() == before
            ask("SELECT PG_ADVISORY_UNLOCK(%s, 0)", ADVISORY)
            done.result(30)
            assert offsets_taken() > before
            transaction.commit()
    finally:
        connection.close()


def test_a_transaction_holds_one_lock_however_often_it_publishes() -> None:
    with OpenTransaction() as transaction:
        for n in range(300):
            transaction.do(lambda n=n: publish("t", n))
        assert ask("SELECT COUNT(*) FROM pg_locks WHERE classid = %s", ADVISORY) == 1
        transaction.commit()


def test_those_who_probe_at_the_same_time_do_not_see_each_other() -> None:
    highest = publish("t", 1).offset

    def probe_once_each() -> set[int]:
        try:
            return {Horizon(LOG).probe(highest) for _ in range(300)}
        finally:
            connections.close_all()

    with ThreadPoolExecutor(3) as pool:
        for seen in [pool.submit(probe_once_each) for _ in range(3)]:
            assert seen.result(60) == {highest}


@pytest.mark.parametrize("restarted", [False, True])
def test_a_transaction_that_was_prepared_for_its_commit_is_waited_for(
    database_server: PrivateServer, restarted: bool
) -> None:
    name = uuid.uuid4().hex
    horizon = Horizon(LOG)
    publish("t", "first")
    with OpenTransaction() as transaction:
        late = transaction.do(lambda: publish("t", "late")).offset
        assert probe_often(horizon) < late
        transaction.do(lambda: ask(f"PREPARE TRANSACTION '{name}'", fetch=False))
        transaction.rollback()  # there is nothing left to roll back
    if restarted:
        database_server.restart()
        connection.close()
    try:
        assert probe_often(horizon) < late
    finally:
        ask(f"COMMIT PREPARED '{name}'", fetch=False)
    assert horizon.wait() == highest_offset(LOG) > late


def probe_often(horizon: Horizon) -> int:
    for _ in range(5):
        publish("t", "after")
        horizon.probe(highest_offset(LOG))
    return horizon.value
