"""No setting of a session changes a value between Python and the server: it is irrelevant, or refused in words that say
what to write."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from django.core.checks import run_checks
from django.db import connection
from django.db.backends.signals import connection_created
from django.test.utils import CaptureQueriesContext

from sqlqueue import ConfigurationError, cancel, get_status, publish, publish_many
from sqlqueue.checks import TAG
from sqlqueue.log.schedule import move_due
from sqlqueue.models import Message, ScheduledMessage
from tests.consuming import Consuming
from tests.logs import LOG
from tests.processes import ManageCommands, database_url, wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.session]

SMILE = "smile 😀 é ' \" \\ %"
SENT = ({"text": SMILE, "empty": "", "number": 0.1}, f"key-{SMILE}", {"head": "😀"})
MYSQL, POSTGRESQL = pytest.mark.database("mariadb", "mysql"), pytest.mark.database("postgresql")
MARIADB = pytest.mark.database("mariadb")
REPLICA = '{"READ_ALIAS": "replica"}'


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Connect with other OPTIONS until the test ends."""

    def give(**options: Any) -> None:
        connection.close()
        monkeypatch.setitem(connection.settings_dict, "OPTIONS", {**before, **options})

    before = connection.settings_dict["OPTIONS"]
    yield give
    connection.close()


@contextmanager
def each_session(*statements: str) -> Iterator[None]:
    """Let whatever connects meanwhile begin with these statements, as a proxy or a receiver of a signal has it."""

    def begin(connection: Any, **_: Any) -> None:
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    connection.close()
    connection_created.connect(begin)
    try:
        yield
    finally:
        connection_created.disconnect(begin)
        connection.close()


def found(*databases: str) -> list[Any]:
    return [message for message in run_checks(tags=[TAG], databases=databases) if message.id == "sqlqueue.E047"]


def assert_refused(word: str) -> None:
    """What publishes or takes back raises, and the check says the same."""
    for refused in (
        lambda: publish("t", {}),
        lambda: publish_many("t", [1, 2]),
        lambda: publish("t", {}, id="a", delay=60),
        lambda: cancel("t", id="a"),
    ):
        with pytest.raises(ConfigurationError, match="OPTIONS") as error:
            refused()
        assert word in str(error.value)
    [message] = found("default")
    assert word in f"{message.msg} {message.hint}"


@MYSQL
@pytest.mark.parametrize("charset", ["utf8", "latin1", "latin2"])
def test_nothing_is_published_over_a_connection_that_lacks_characters(options: Any, charset: str) -> None:
    options(charset=charset)
    assert_refused("utf8mb4")
    options()
    assert not Message.objects.exists()
    assert not ScheduledMessage.objects.exists()


@MYSQL
@pytest.mark.parametrize("variable", ["client", "connection", "results"])
def test_each_of_the_servers_character_sets_counts(variable: str) -> None:
    with each_session(f"SET character_set_{variable} = utf8mb3"):
        assert_refused("utf8mb4")


@MYSQL
def test_the_drivers_character_set_counts_where_a_proxy_answers_for_the_server() -> None:
    connection.ensure_connection()
    connection.connection.set_character_set("latin1")
    with connection.cursor() as cursor:
        cursor.execute("SET NAMES utf8mb4")
    assert_refused("utf8mb4")
    connection.close()


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_a_connection_is_asked_once_and_a_publish_never() -> None:
    publish("t", 0)
    connection.close()

    def statements() -> int:
        with CaptureQueriesContext(connection) as queries:
            publish("t", 1)
        return len([query for query in queries if "LAST_INSERT_ID" not in query["sql"]])

    connection.ensure_connection()
    first, second, third = (statements() for _ in range(3))
    assert (first, second, third) == (second + 1, second, second)


@MYSQL
def test_a_scheduled_message_is_not_moved_by_a_process_that_would_change_it(options: Any) -> None:
    payload, key, headers = SENT
    publish("t", payload, id="a", key=key, headers=headers, delay=0.001)
    options(charset="utf8")
    with pytest.raises(ConfigurationError, match="utf8mb4"):
        wait_until(lambda: move_due(LOG))
    options()
    wait_until(lambda: move_due(LOG))
    message = Message.objects.get()
    assert (message.payload, message.partition_key, message.headers) == SENT


@MYSQL
@pytest.mark.parametrize("words", [("runconsumers", "--check"), ("runconsumers",), ("check", "--database=default")])
def test_a_process_with_such_a_connection_does_not_start(manage: ManageCommands, words: tuple[str, ...]) -> None:
    command = manage(*words, env={"DATABASE_URL": f"{database_url()}?charset=utf8"})
    assert command.wait() == 1
    assert "sqlqueue.E047" in command.output
    assert "'charset'] = 'utf8mb4'" in command.output
    assert "Traceback" not in command.output


@MYSQL
def test_a_replica_is_read_over_no_such_connection(manage: ManageCommands) -> None:
    env = {"FURTHER_URLS": f"replica={database_url()}?charset=utf8", "SQLQUEUE": REPLICA}
    command = manage("check", "--database=replica", env=env)
    assert command.wait() == 1
    assert "'replica'" in command.output
    assert command.output.count("sqlqueue.E047") == 1


@POSTGRESQL
def test_consumers_do_not_start_where_a_replicas_sessions_change_values(manage: ManageCommands) -> None:
    env = {"FURTHER_URLS": f"replica={database_url()}?options=-c%20DateStyle%3DGerman", "SQLQUEUE": REPLICA}
    command = manage("runconsumers", "--check", env=env)
    assert command.wait() == 1, command.output
    assert "alias 'replica'" in command.output
    assert command.output.count("sqlqueue.E047") == 1


@pytest.mark.once
def test_a_replica_that_does_not_answer_keeps_no_consumers_from_starting(manage: ManageCommands) -> None:
    env = {"FURTHER_URLS": "replica=sqlite:////nowhere/db", "DATABASE_URL": database_url(), "SQLQUEUE": REPLICA}
    command = manage("runconsumers", "--check", env=env)
    assert command.wait() == 0
    assert "the replica 'replica' (READ_ALIAS) does not answer" in command.output


@pytest.mark.parametrize(
    ("given", "word"),
    [
        pytest.param({"use_unicode": False}, "use_unicode", marks=MYSQL),
        pytest.param({"conv": {}}, "conv", marks=MYSQL),
        pytest.param({"cursorclass": "DictCursor"}, "cursorclass", marks=MYSQL),
        pytest.param({"options": "-c DateStyle=German"}, "DateStyle", marks=POSTGRESQL),
    ],
)
def test_options_of_the_driver_that_change_values_are_refused(options: Any, given: dict[str, Any], word: str) -> None:
    if "cursorclass" in given:
        from MySQLdb.cursors import DictCursor

        given = {"cursorclass": DictCursor}
    options(**given)
    assert_refused(word)


@pytest.mark.parametrize(
    ("statement", "word"),
    [
        pytest.param("SET sql_mode = 'STRICT_TRANS_TABLES,EMPTY_STRING_IS_NULL'", "sql_mode", marks=MARIADB),
        pytest.param("SET client_encoding = 'LATIN1'", "client_encoding", marks=POSTGRESQL),
        pytest.param("SET client_encoding = 'SQL_ASCII'", "client_encoding", marks=POSTGRESQL),
        pytest.param("SET DateStyle = 'SQL, DMY'", "DateStyle", marks=POSTGRESQL),
    ],
)
def test_settings_of_a_session_that_change_values_are_refused(statement: str, word: str) -> None:
    with each_session(statement):
        assert_refused(word)


MODES = ["ANSI", "NO_BACKSLASH_ESCAPES", "PAD_CHAR_TO_FULL_LENGTH", "HIGH_NOT_PRECEDENCE,REAL_AS_FLOAT"]
OF_MARIADB = ["ORACLE", "MSSQL", "TIME_ROUND_FRACTIONAL,SIMULTANEOUS_ASSIGNMENT"]


@pytest.mark.parametrize(
    "statement",
    [
        *(pytest.param(f"SET sql_mode = 'STRICT_TRANS_TABLES,{mode}'", marks=MYSQL) for mode in MODES),
        *(pytest.param(f"SET sql_mode = 'STRICT_TRANS_TABLES,{mode}'", marks=MARIADB) for mode in OF_MARIADB),
        pytest.param("SET time_zone = '+09:00'", marks=MYSQL),
        pytest.param("SET NAMES utf8mb4 COLLATE utf8mb4_bin", marks=MYSQL),
        pytest.param("SET NAMES utf8mb4 COLLATE utf8mb4_turkish_ci", marks=MYSQL),
        pytest.param("SET bytea_output = 'escape'", marks=POSTGRESQL),
        pytest.param("SET standard_conforming_strings = off", marks=POSTGRESQL),
        pytest.param("SET DateStyle = 'ISO, DMY'", marks=POSTGRESQL),
        pytest.param("SET IntervalStyle = 'iso_8601'", marks=POSTGRESQL),
        pytest.param("SET extra_float_digits = -3", marks=POSTGRESQL),
    ],
)
def test_settings_of_a_session_that_are_irrelevant(statement: str, consuming: Consuming) -> None:
    payload, key, headers = SENT
    seen: list[Any] = []

    @consuming.consumer("t", max_attempts=2, backoff=0.0)
    def handle(delivery: Any) -> None:
        seen.append((delivery.payload, delivery.key, delivery.headers))
        if delivery.attempt == 1:
            raise ValueError(SMILE)

    with each_session(statement):
        publish("t", payload, id=SMILE, key=key, headers=headers)
        publish("t", b"\0\xff'\\", content_type="image/png", id="b", delay=0.001)
        consuming.drain()
        wait_until(lambda: consuming.drain() and len(seen) == 4)
        assert [one for one in seen if one[0] != b"\0\xff'\\"] == [SENT] * 2
        published_at = get_status("t", id=SMILE, key=key).published_at
        assert published_at is not None
        assert abs(datetime.now(timezone.utc) - published_at) < timedelta(minutes=5)
        assert not run_checks(tags=[TAG], databases=["default"])
    assert get_status("t", id=SMILE, key=key).published_at == published_at


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "UTC", None])
def test_stored_times_are_read_as_they_are_or_the_aliass_zone_is_refused(
    monkeypatch: pytest.MonkeyPatch, zone: str | None
) -> None:
    connection.close()
    monkeypatch.setitem(connection.settings_dict, "TIME_ZONE", zone)
    for name in ("timezone", "timezone_name"):
        connection.__dict__.pop(name, None)
    try:
        messages = run_checks(tags=[TAG], databases=["default"])
        if zone == "Asia/Tokyo" and connection.vendor != "postgresql":
            assert [message.id for message in messages] == ["sqlqueue.E048"]
            assert "TIME_ZONE" in messages[0].hint
            return
        assert not messages
        publish("t", 1, id="a")
        published_at = get_status("t", id="a").published_at
        assert published_at is not None
        assert abs(datetime.now(timezone.utc) - published_at) < timedelta(minutes=5)
    finally:
        connection.close()
        monkeypatch.undo()
        for name in ("timezone", "timezone_name"):
            connection.__dict__.pop(name, None)
