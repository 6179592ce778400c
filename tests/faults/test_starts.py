"""Consumer processes that start while the database is away wait for it; without a table they do not begin."""

import os
import signal
from pathlib import Path

import pytest
from django.db import connection

from sqlqueue.consumers.process.worker import wait_for_database
from sqlqueue.models import Receipt
from tests.consumer_processes import GROUP, Consumers
from tests.logs import LOG
from tests.processes import ROOT, ManageCommands
from tests.progress import wait_until_settled
from tests.servers.children import children_of
from tests.servers.private import PrivateServer

# What `manage.py` gets as its words, as process 1 of a namespace of its own: nothing ends that by default but SIGKILL.
FIRST_PROCESS = f"""
import os, sys
own = ["unshare", "--pid", "--fork", "--kill-child", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
os.execvp(own[0], [*own, sys.executable, {str(ROOT / "manage.py")!r}, *sys.argv[1:]])
"""

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.session
@pytest.mark.database("mariadb", "mysql", "postgresql")
@pytest.mark.parametrize("processes", [0, 1])
def test_a_process_that_starts_before_its_database_waits_for_it(
    consumers: Consumers, database_server: PrivateServer, processes: int
) -> None:
    consumers.publish("steady", "a")
    connection.close()
    database_server.stop()
    command = consumers.start("steady", processes=processes)
    command.wait_for_line("event=database_unreachable .*retry_in=2", timeout=60)
    database_server.start()
    wait_until_settled("steady", GROUP)
    assert consumers.noted("end") == {("a", 1): 1}
    assert "process_died" not in command.output
    command.terminate()
    assert command.wait() == 0


@pytest.mark.database("mariadb", "mysql")
def test_an_error_of_connecting_is_waited_for_whatever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        monkeypatch.undo()

    connection.close()
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "init_command", "SET SESSION unheard_of = 1")  # 1193
    assert wait_for_database(LOG, pause)
    assert pauses


@pytest.mark.session
@pytest.mark.database("mariadb")
def test_sigterm_ends_a_containers_first_process_that_has_not_begun(
    manage: ManageCommands, database_server: PrivateServer, tmp_path: Path
) -> None:
    container = tmp_path / "container.py"
    container.write_text(FIRST_PROCESS)
    connection.close()
    database_server.stop()
    command = manage("runconsumers", script=container)
    command.wait_for_line("event=database_unreachable")
    (first,) = children_of(command.pid)
    os.kill(first, signal.SIGTERM)
    assert command.wait(10) == 0
    database_server.start()


def test_a_process_without_one_of_its_tables_ends_with_status_1(consumers: Consumers) -> None:
    consumers.publish("steady", "a")
    table = Receipt._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} RENAME TO {table}_away")
    try:
        command = consumers.start("steady", processes=0)
        assert command.wait() == 1
        assert "event=tables_missing" in command.output
        assert not consumers.noted("begin")
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE {table}_away RENAME TO {table}")
