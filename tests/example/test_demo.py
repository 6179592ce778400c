"""The demo and the site, run as a person runs them."""

import os
import re
import signal
import socket
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.processes import ManageCommand, ManageCommands, wait_until

pytestmark = pytest.mark.once

FLIGHTS = 1_500


@pytest.fixture
def example(tmp_path: Path) -> dict[str, str]:
    """The environment of the example project with a `var` folder of its own, on the test database."""
    return {"DJANGO_SETTINGS_MODULE": "example_project.settings", "VAR_DIR": str(tmp_path / "var")}


def ended(command: ManageCommand) -> str:
    """Wait for a demo that must succeed and return what it said."""
    assert command.wait(timeout=200) == 0, command.output
    return command.output


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def log_of(command: ManageCommand, example: dict[str, str]) -> str:
    log = Path(example["VAR_DIR"], "demo-consumers.log")
    return f"{command.output}\n{log.read_text() if log.exists() else ''}"


@pytest.mark.database("sqlite")
def test_the_demo_proves_what_came_out_and_starts_afresh_in_its_own_file(
    manage: ManageCommands, example: dict[str, str]
) -> None:
    own_file = example | {"DATABASE_URL": ""}
    command = manage("demo", "--flights", str(FLIGHTS), env=own_file)
    assert command.wait(timeout=200) == 0, log_of(command, example)
    assert f"OK   published: {FLIGHTS:,} of {FLIGHTS:,} flights are in the log once" in command.output
    assert "OK   settled: 3 of 3 groups have settled every flight" in command.output
    assert "OK   order per aircraft: " in command.output
    assert re.search(
        r"Periodic job, every 2 s meanwhile: \d+ runs; at [\d:]{8} UTC [\d,]+ had departed", command.output
    )
    assert "Task, enqueued after that: busiest_carrier('JFK') is SUCCESSFUL, {'carrier': " in command.output
    assert "Call: reserve_seats('UA-1545', 2) has the reply {'reserved': 2, 'left': 148}" in command.output
    assert "Refunds: 2 are paid through the bank, within its limits: 275 dollars; 1 of" in command.output
    assert "Batch: 3 of 3 airport reports, succeeded; the newsletter" in command.output
    assert "FAIL" not in command.output
    assert command.output.rstrip().endswith("make site")
    again = ended(manage("demo", "--flights", "200", env=own_file))
    assert "Removed the last demo's database" in again
    assert "OK   published: 200 of 200 flights are in the log once" in again


def test_the_demo_removes_no_database_but_its_own(manage: ManageCommands, example: dict[str, str]) -> None:
    ended(manage("publishflights", "--flights", "10", env=example))
    command = manage("demo", "--flights", "20", env=example)
    assert command.wait() == 1
    assert "the demo removes its own SQLite file only, no other database" in command.output


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_a_demo_whose_consumers_die_fails_and_shows_their_log(manage: ManageCommands, example: dict[str, str]) -> None:
    command = manage("demo", "--flights", "5000", env=example)
    log = Path(example["VAR_DIR"], "demo-consumers.log")
    wait_until(lambda: log.exists() and "lease_acquired" in log.read_text(), message=lambda: command.output)
    (consumers,) = children_of(command.pid)
    os.killpg(consumers, signal.SIGKILL)  # their supervisor and their processes are one group
    assert command.wait() == 1
    assert "runconsumers ended with exit code -9." in command.output
    assert "lease_acquired" in command.output


def test_the_site_runs_until_it_is_asked_to_end(
    manage: ManageCommands, example: dict[str, str], unused_port: int
) -> None:
    command = manage("site", env=example | {"PORT": str(unused_port)})
    password = command.wait_for_line(r"Password: +(\S+) \(shown only now\)")
    assert len(password[1]) >= 12
    children = children_of(command.pid)
    try:
        with urlopen(f"http://127.0.0.1:{unused_port}/", timeout=60) as page:
            assert b"Flight operations" in page.read()
        assert len(children) == 2
    finally:
        command.terminate()  # its children are groups of their own, which nothing else would end
        command.wait()
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]
