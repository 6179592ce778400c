"""Errors are classified by their codes; contention reruns the whole operation, and never inside a caller's
transaction."""

import select
import sqlite3
import threading

import pytest
from django.db import Error, IntegrityError, OperationalError, connection, transaction
from django.db.utils import InterfaceError

from sqlqueue.database import retries
from sqlqueue.database.retries import ErrorKind
from sqlqueue.models import Topic
from tests.logs import LOG
from tests.processes import wait_until
from tests.servers.private import PrivateServer
from tests.servers.session import connection_id, crash_a_process, end_connection, isolate
from tests.transactions import OpenTransaction


class MySQLError(Exception):
    """Shaped as mysqlclient's errors are (it need not be installed): the server's number first, then its text."""


MySQLInterfaceError = type("InterfaceError", (MySQLError,), {})


def raised(error: Exception, django: type[Exception] = OperationalError) -> Exception:
    """Return the error as Django raises it: with the driver's as its cause."""
    try:
        try:
            raise error
        except type(error) as cause:
            raise django(*cause.args) from cause
    except django as wrapped:
        return wrapped


@pytest.mark.parametrize(
    ("number", "fault"),
    [
        (1205, ErrorKind.CONTENTION),
        (1213, ErrorKind.CONTENTION),
        (1020, ErrorKind.CONTENTION),
        (2006, ErrorKind.GONE),
        (2013, ErrorKind.GONE),
        (2002, ErrorKind.GONE),
        (1927, ErrorKind.GONE),
        (1053, ErrorKind.GONE),
        (1290, ErrorKind.GONE),
        (1792, ErrorKind.GONE),
        (1062, ErrorKind.DUPLICATE),
        (1146, ErrorKind.SCHEMA),
        (1153, ErrorKind.DATA),  # a statement that is too long: it would be too long the next time
        (2020, ErrorKind.DATA),
        (1064, ErrorKind.OTHER),
    ],
)
def test_mysql_numbers(number: int, fault: ErrorKind) -> None:
    # The text says something else on purpose: it is not read.
    driver = MySQLError(number, "database is locked, deadlock, gone away, duplicate")
    assert retries.classify(raised(driver)) is fault
    assert retries.classify(driver) is fault


def test_a_connection_that_is_closed_is_gone() -> None:
    assert retries.classify(raised(MySQLInterfaceError(0, ""), InterfaceError)) is ErrorKind.GONE


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (5, ErrorKind.CONTENTION),
        (5 | 2 << 8, ErrorKind.CONTENTION),  # SQLITE_BUSY_SNAPSHOT
        (6, ErrorKind.CONTENTION),
        (13, ErrorKind.GONE),
        (2067, ErrorKind.DUPLICATE),
        (1299, ErrorKind.DATA),
        (1, ErrorKind.OTHER),
    ],
)
def test_sqlite_codes(code: int, fault: ErrorKind) -> None:
    error = sqlite3.OperationalError("whatever")
    error.sqlite_errorcode = code
    assert retries.classify(raised(error)) is fault


@pytest.mark.parametrize(
    ("state", "fault"),
    [
        ("40001", ErrorKind.CONTENTION),
        ("40P01", ErrorKind.CONTENTION),
        ("23505", ErrorKind.DUPLICATE),
        ("08006", ErrorKind.GONE),
        ("57P01", ErrorKind.GONE),
        ("57P03", ErrorKind.GONE),
        ("53300", ErrorKind.GONE),
        ("25006", ErrorKind.GONE),
        ("25P03", ErrorKind.GONE),
        ("58030", ErrorKind.GONE),
        ("55P03", ErrorKind.CONTENTION),
        ("25P02", ErrorKind.BROKEN),
        ("22P05", ErrorKind.DATA),
        ("42P01", ErrorKind.SCHEMA),
    ],
)
def test_postgresql_states(state: str, fault: ErrorKind) -> None:
    error = Exception("whatever")
    error.sqlstate = state
    assert retries.classify(raised(error)) is fault


@pytest.mark.database("postgresql")
@pytest.mark.django_db(transaction=True)
class TestWhatPostgreSQLReallySays:
    """Some of it has no SQLSTATE: what the client library has seen, and not the server said."""

    def classified(self, *statements: str) -> ErrorKind:
        with pytest.raises(Error) as raised:
            self.run(*statements)
        return retries.classify(raised.value)

    def test_of_a_connection_that_an_administrator_has_ended(self) -> None:
        number = connection_id()
        try:
            with OpenTransaction() as another:
                another.do(lambda: end_connection(number))
            assert self.classified("SELECT 1") is ErrorKind.GONE
            assert self.classified("SELECT 1") is ErrorKind.GONE  # it is closed now
        finally:
            connection.close()

    def test_of_a_connection_that_ended_with_all_others(self, database_server: PrivateServer) -> None:
        with OpenTransaction() as other:
            other.do(Topic.objects.exists)
            crash_a_process()
            assert retries.classify(other.start(Topic.objects.exists).exception(30)) is ErrorKind.GONE

    @pytest.mark.session
    def test_of_a_server_that_is_away(self, database_server: PrivateServer) -> None:
        connection.close()
        database_server.stop()
        assert self.classified("SELECT 1") is ErrorKind.GONE

    @pytest.mark.session
    def test_of_an_idle_transaction_that_took_too_long(self) -> None:
        try:
            with transaction.atomic():
                with connection.cursor() as cursor:
                    cursor.execute("SET idle_in_transaction_session_timeout = '1ms'")
                wait_until(self.is_broken)
                with pytest.raises(Error) as raised:
                    Topic.objects.exists()
                assert retries.classify(raised.value) is ErrorKind.GONE
        except Error:
            pass
        finally:
            connection.close()

    @pytest.mark.session
    def test_of_a_lock_that_was_not_to_be_had_in_time(self) -> None:
        with OpenTransaction() as other:
            other.do(lambda: Topic.objects.create(name="a", partitions=0))
            try:
                insert = "INSERT INTO sqlqueue_topic (name, partitions) VALUES ('a', 0)"
                assert self.classified("SET lock_timeout = '10ms'", insert) is ErrorKind.CONTENTION
            finally:
                connection.close()

    def test_of_a_row_that_is_there_already(self) -> None:
        insert = "INSERT INTO sqlqueue_publish_gate (slot) VALUES (7)"
        assert self.classified(insert) is ErrorKind.DUPLICATE

    def test_of_a_row_that_changed_since_the_snapshot(self) -> None:
        Topic.objects.create(name="a", partitions=0)
        isolate("repeatable read")
        with pytest.raises(Error) as raised:
            self.update_what_another_updates_meanwhile()
        connection.close()
        assert retries.classify(raised.value) is ErrorKind.CONTENTION

    @transaction.atomic
    def update_what_another_updates_meanwhile(self) -> None:
        assert Topic.objects.get().partitions == 0
        with OpenTransaction() as other:
            other.do(lambda: Topic.objects.update(partitions=1))
            other.commit()
        Topic.objects.update(partitions=2)

    def run(self, *statements: str) -> None:
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def is_broken(self) -> bool:
        """Tell whether the server has closed the connection, without asking it."""
        readable, _, _ = select.select([connection.connection.fileno()], [], [], 0)
        return bool(readable)


def contention() -> Exception:
    if connection.vendor == "sqlite":
        error = sqlite3.OperationalError("database is locked")
        error.sqlite_errorcode = 5
        return raised(error)
    return raised(MySQLError(1213, "Deadlock"))


class Operation:
    """Writes a row, and meets contention the first times."""

    def __init__(self, failures: int):
        self.calls, self.failures = 0, failures

    def __call__(self, name: str) -> str:
        self.calls += 1
        Topic.objects.create(name=f"{name}{self.calls}", partitions=1)
        if self.calls <= self.failures:
            raise contention()
        return "done"

    __name__ = "operation"


@pytest.mark.django_db(transaction=True)
def test_contention_reruns_the_whole_operation() -> None:
    operation = Operation(2)
    assert retries.run(LOG, operation, "t") == "done"
    assert operation.calls == 3
    assert list(Topic.objects.values_list("name", flat=True)) == ["t3"]  # what was half done was rolled back


@pytest.mark.django_db(transaction=True)
def test_an_operation_is_not_rerun_for_ever() -> None:
    operation = Operation(1_000)
    with pytest.raises(OperationalError):
        retries.run(LOG, operation, "t")
    assert operation.calls == retries.RERUNS


@pytest.mark.django_db(transaction=True)
def test_inside_somebody_elses_transaction_nothing_is_rerun() -> None:
    operation = Operation(1)
    with pytest.raises(OperationalError), transaction.atomic():
        retries.run(LOG, operation, "t")
    assert operation.calls == 1
    statement = Operation(1)
    with pytest.raises(OperationalError), transaction.atomic():
        retries.run_statement(LOG, statement, "t")
    assert statement.calls == 1


@pytest.mark.django_db(transaction=True)
def test_other_errors_are_not_rerun() -> None:
    calls = []

    def operation() -> None:
        calls.append(1)
        raise IntegrityError("no")

    with pytest.raises(IntegrityError):
        retries.run(LOG, operation)
    assert calls == [1]


@pytest.mark.django_db(transaction=True)
def test_a_patient_operation_goes_on_through_a_lost_connection() -> None:
    calls = []

    def operation() -> str:
        calls.append(1)
        if len(calls) < 3:
            raise raised(MySQLError(2013, "Lost connection"))
        return "done"

    if connection.vendor != "sqlite":
        assert retries.patiently(LOG, operation, give_up=lambda: False) == "done"
        assert len(calls) == 3
    lost = raised(MySQLError(2013, "Lost connection"))

    def never() -> None:
        raise lost

    assert retries.patiently(LOG, never, give_up=lambda: True) is None


@pytest.mark.django_db(transaction=True)
def test_a_patient_operation_runs_in_no_transaction_but_its_own() -> None:
    inside = retries.patiently(LOG, lambda: connection.in_atomic_block, give_up=lambda: True)
    assert inside is False


@pytest.mark.database("mariadb", "mysql", "postgresql")
@pytest.mark.django_db(transaction=True)
def test_a_real_deadlock_reruns_the_whole_operation() -> None:
    """Two connections lock two rows in opposite orders; the server picks a victim, whose operation is run again."""
    Topic.objects.bulk_create([Topic(name=name, partitions=0) for name in ("a", "b")])
    both_hold_one = threading.Barrier(2)
    calls: list[str] = []
    errors: list[Exception] = []

    def add(first: str, second: str) -> None:
        calls.append(first)
        for name in (first, second):
            topic = Topic.objects.select_for_update().get(name=name)
            Topic.objects.filter(name=name).update(partitions=topic.partitions + 1)
            if name == first and len(calls) <= 2:
                both_hold_one.wait(30)

    def work(first: str, second: str) -> None:
        try:
            retries.run(LOG, add, first, second)
        except Error as error:
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=work, args=names) for names in (("a", "b"), ("b", "a"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert len(calls) == 3, "no operation met a deadlock"
    assert set(Topic.objects.values_list("partitions", flat=True)) == {2}  # each operation counts once, in both rows
