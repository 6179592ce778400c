"""Consumer processes that are stopped while their database does not answer any more end all the same."""

import json
import signal
from pathlib import Path

import pytest
from django.db import connection

from tests.consumer_processes import Consumers
from tests.processes import ROOT, ManageCommands
from tests.servers.private import PrivateServer

pytestmark = pytest.mark.django_db(transaction=True)

# What `manage.py` gets as its words; also of the processes that are spawned, which import it.
QUICKLY = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from sqlqueue.consumers.process import worker
worker.LATEST_END = 1.0  # instead of 25 seconds
if __name__ == "__main__":
    from django.core.management import execute_from_command_line
    execute_from_command_line(sys.argv)
"""


@pytest.mark.session
@pytest.mark.database("mariadb", "postgresql")
@pytest.mark.parametrize("processes", [0, 1])
def test_a_frozen_server_does_not_keep_processes_from_ending(
    consumers: Consumers, manage: ManageCommands, database_server: PrivateServer, tmp_path: Path, processes: int
) -> None:
    script = tmp_path / "quickly.py"
    script.write_text(QUICKLY)
    consumers.publish("steady", "a")
    connection.close()
    words = ["--topic=steady", f"--processes={processes}"]
    command = manage(
        "runconsumers",
        *words,
        script=script,
        env={"SQLQUEUE": json.dumps({**consumers._options, "SHUTDOWN_TIMEOUT": 0})},
    )
    command.wait_for_line("event=lease_acquired")
    connection.close()
    with database_server.frozen():
        command.terminate()
        assert command.wait(30) == -signal.SIGALRM
