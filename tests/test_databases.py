"""The suite runs on the database that it says it runs on, set up as sqlqueue's users should have theirs."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from django.db import OperationalError, connection, transaction

from tests.app.models import Effect
from tests.processes import ManageCommands
from tests.servers import DatabaseChoiceError, choose
from tests.servers.children import children_of, lives
from tests.servers.mariadb import PrivateMariaDB
from tests.servers.mysql import PrivateMySQL
from tests.servers.postgresql import PrivatePostgreSQL
from tests.servers.private import PrivateServer


def select(sql: str) -> object:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()[0]


@pytest.mark.django_db
def test_the_connection_is_to_the_database_that_was_asked_for(database_name: str) -> None:
    actual = connection.vendor
    if connection.vendor == "mysql":
        actual = "mariadb" if "mariadb" in str(select("SELECT VERSION()")).lower() else "mysql"
    assert actual == database_name, f"DATABASE={database_name}, and the connection is to {actual}"


@pytest.mark.django_db
@pytest.mark.database("sqlite")
def test_sqlite_is_a_file_that_processes_can_share() -> None:
    assert select("PRAGMA journal_mode") == "wal"
    assert Path(connection.settings_dict["NAME"]).is_file()
    assert connection.transaction_mode == "IMMEDIATE"


@pytest.mark.django_db
@pytest.mark.database("mariadb", "mysql")
def test_the_server_is_strict_and_reads_what_is_committed(database_name: str) -> None:
    variable = "tx_isolation" if database_name == "mariadb" else "transaction_isolation"
    assert select(f"SELECT @@{variable}") == "READ-COMMITTED"
    assert "STRICT_TRANS_TABLES" in str(select("SELECT @@sql_mode"))
    assert select("SELECT @@character_set_connection") == "utf8mb4"
    assert select("SELECT @@character_set_database") == "utf8mb4"


@pytest.mark.django_db
@pytest.mark.database("postgresql")
def test_compared_strings_are_ordered_by_their_bytes() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relname || '.' || attname, collname FROM pg_attribute JOIN pg_class c ON c.oid = attrelid"
            " JOIN pg_collation l ON l.oid = attcollation WHERE relkind = 'r' AND relname LIKE 'sqlqueue_%'"
        )
        collations = dict(cursor.fetchall())
    for column in ("message.topic", "message.partition_key", "message.message_id", "offset.consumer_group"):
        assert collations[f"sqlqueue_{column}"] == "C"


@pytest.mark.django_db(transaction=True)
def test_a_process_works_on_the_test_database(manage: ManageCommands) -> None:
    effect = Effect.objects.create(name="from the test", value="✈")
    script = (
        "from tests.app.models import Effect; print('seen', Effect.objects.get().value.encode());"
        "Effect.objects.create(name='from the process', value='1')"
    )
    command = manage("shell", "-v", "0", "-c", script)
    command.wait_for_line(rf"seen {effect.value.encode()!r}".replace("\\", "\\\\"))
    assert command.wait() == 0, command.output
    assert set(Effect.objects.values_list("name", flat=True)) == {"from the test", "from the process"}


@pytest.mark.django_db(transaction=True)
def test_a_process_that_never_ends_is_ended(manage: ManageCommands) -> None:
    command = manage("shell", "-v", "0", "-c", "import time; print('ready', flush=True); time.sleep(3600)")
    command.wait_for_line("^ready$")
    command.freeze()
    manage.end()
    assert command.returncode == -9


@pytest.mark.django_db(transaction=True)
def test_what_is_committed_survives_a_crash_of_the_server(database_server: PrivateServer) -> None:
    Effect.objects.create(name="committed", value="1")
    transaction.set_autocommit(False)
    Effect.objects.create(name="not committed", value="1")
    database_server.kill()
    with pytest.raises(OperationalError):
        Effect.objects.count()
    connection.close()
    database_server.start()
    assert [effect.name for effect in Effect.objects.all()] == ["committed"]


@pytest.mark.database("postgresql")
def test_a_killed_postgresql_server_leaves_no_process_and_comes_back(database_server: PrivatePostgreSQL) -> None:
    with PrivatePostgreSQL() as other:
        folder, pid = other.folder, other.pid
        assert other.port != database_server.port
        assert pid is not None
        children = list(children_of(pid))
        assert len(children) >= 3
        other.kill()
        assert not [child for child in (pid, *children) if lives(child)]
        other.start()
        other.restart()
        assert other.pid
    assert not folder.exists()
    assert database_server.pid


@pytest.mark.database("mariadb", "mysql")
def test_two_private_servers_stand_side_by_side(database_name: str, database_server: PrivateServer) -> None:
    with {"mariadb": PrivateMariaDB, "mysql": PrivateMySQL}[database_name](log_bin=True) as other:
        folder = other.folder
        assert other.port != database_server.port
        assert other.pid != database_server.pid
        assert list((folder / "data").glob("binlog.0*"))
    assert not folder.exists()
    assert database_server.pid


# A process that nohup has started ignores SIGHUP, and so do those that it starts.
ALONE = """
import signal, sys, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from tests.servers import PRIVATE
with PRIVATE[sys.argv[1]]() as server:
    print(server.pid, server.folder, flush=True)
    time.sleep(600)
"""


@pytest.mark.database("mariadb", "mysql", "postgresql")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_a_server_ends_with_the_process_that_has_started_it(database_name: str, number: signal.Signals) -> None:
    """As a benchmark has."""
    with subprocess.Popen([sys.executable, "-c", ALONE, database_name], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid, folder = process.stdout.readline().split()
        process.send_signal(number)
        assert process.wait(60) != 0
    assert not lives(int(pid))
    assert not Path(folder).exists()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ("sqlite", "")),
        ({"DATABASE": "mariadb"}, ("mariadb", "")),
        ({"DATABASE": "mysql"}, ("mysql", "")),
        ({"DATABASE": "postgresql"}, ("postgresql", "")),
        ({"DATABASE_URL": "postgresql://u@h/n"}, ("postgresql", "postgresql://u@h/n")),
        ({"DATABASE_URL": "mysql://u@h/n"}, ("mariadb", "mysql://u@h/n")),
        ({"DATABASE": "mysql", "DATABASE_URL": "mysql://u@h/n"}, ("mysql", "mysql://u@h/n")),
    ],
)
def test_the_environment_chooses(environment: dict[str, str], expected: tuple[str, str]) -> None:
    assert choose(environment) == expected


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"DATABASE": "oracle"}, "choose one of"),
        ({"DATABASE": "mariadb", "DATABASE_URL": "sqlite:///x"}, "does not go with"),
        ({"DATABASE_URL": "oracle://x"}, "known are"),
    ],
)
def test_an_impossible_choice_is_refused(environment: dict[str, str], said: str) -> None:
    with pytest.raises(DatabaseChoiceError, match=said):
        choose(environment)
