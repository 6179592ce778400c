"""A connection without Django: a result of any size, and statements that are run again, but not for ever."""

import sqlite3
from collections.abc import Iterator

import pytest
from django.db import connection

from sqlqueue import publish_many
from sqlqueue.database import dbapi as plain_module
from sqlqueue.database.dbapi import ROWS_AT_ONCE, Connection, access
from sqlqueue.database.error_codes import ErrorKind, classify
from sqlqueue.models import Message

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def plain() -> Iterator[Connection]:
    with Connection(access("default")) as plain:
        yield plain


def contention() -> Exception:
    """Return an error of the driver's that a deadlock, or a lock that was not to be had in time, raises."""
    error: Exception
    if connection.vendor == "sqlite":
        error = sqlite3.OperationalError("database is locked")
        error.sqlite_errorcode = sqlite3.SQLITE_BUSY  # type: ignore[attr-defined]
    elif connection.vendor == "mysql":
        from MySQLdb import OperationalError

        error = OperationalError(1213, "Deadlock")
    else:
        from psycopg.errors import DeadlockDetected

        error = DeadlockDetected()
    assert classify(error) is ErrorKind.CONTENTION
    return error


def test_a_result_is_read_past_what_is_fetched_at_once(plain: Connection) -> None:
    count = 2 * ROWS_AT_ONCE + 1
    publish_many("t", range(count))
    chunks = list(plain.stream('SELECT "offset" FROM sqlqueue_message ORDER BY "offset"'))
    assert len(chunks) == 3
    found = [offset for chunk in chunks for (offset,) in chunk]
    assert found == list(Message.objects.order_by("offset").values_list("offset", flat=True))


def test_contention_that_does_not_end_is_told(plain: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_module, "TRIES", 3)
    calls: list[int] = []

    def operation(failures: int) -> str:
        calls.append(failures)
        if len(calls) <= failures:
            raise contention()
        return "done"

    assert plain.again(operation, 2) == "done"
    assert len(calls) == 3
    calls.clear()
    with pytest.raises(type(contention())):
        plain.again(operation, 3)
    assert len(calls) == 3
