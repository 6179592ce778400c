"""A consumer that leaves says so by its exit status; one that had not begun yet says nothing."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak.fleet import Fleet
from tests.soak.history import Journal


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    journal = Journal(tmp_path, "harness")
    urls = {"consumers_url": "sqlite://", "publishers_url": "sqlite://"}
    return Fleet(tmp_path, journal, **urls, options={}, seed=1, rates=(1.0, 1.0))


def ended(fleet: Fleet, code: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", f"import os, signal; {code}"])
    process.wait(60)
    fleet.consumers["visitor"].process = process
    return process


@pytest.mark.parametrize(
    ("code", "begun", "status"),
    [
        ("os.kill(os.getpid(), signal.SIGTERM)", False, 0),
        ("os.kill(os.getpid(), signal.SIGTERM)", True, -signal.SIGTERM),
        ("os.kill(os.getpid(), signal.SIGKILL)", False, -signal.SIGKILL),
        ("os._exit(1)", False, 1),
    ],
)
def test_the_status_of_a_consumer_that_was_stopped(
    fleet: Fleet, tmp_path: Path, code: str, begun: bool, status: int
) -> None:
    process = ended(fleet, code)
    if begun:
        (tmp_path / f"consumer-{process.pid}-1.jsonl").touch()
    assert fleet.stop_consumers() == {"visitor": status}


def test_one_that_was_killed_on_purpose_while_it_left(fleet: Fleet) -> None:
    process = ended(fleet, "os.kill(os.getpid(), signal.SIGKILL)")
    fleet.killed.add(process.pid)
    assert fleet.stop_consumers() == {"visitor": 0}
