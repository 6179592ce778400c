"""What the documents say of connections and of stopping is counted, with real processes on a real server."""

import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.consumer_processes import Consumers, wait_for_shares
from tests.deployment.test_examples import LAST_SETTLES
from tests.documents import ROOT
from tests.processes import wait_until
from tests.servers.processlist import sessions

pytestmark = pytest.mark.once

FORMULA = re.compile(r"processes × \(threads \+ (\d+)\)")
DOCUMENTS = [ROOT / "docs" / "guide.md", ROOT / "docs" / "operations" / "deployment.md"]


def documented() -> int:
    """Return how many connections a process has beside its threads', as all documents say it."""
    (said,) = {int(own) for document in DOCUMENTS for own in FORMULA.findall(document.read_text())}
    return said


@pytest.mark.database("mariadb", "mysql", "postgresql")
@pytest.mark.parametrize(("processes", "threads"), [(1, 2), (2, 3)])
@pytest.mark.session
def test_busy_consumers_have_the_documented_number_of_connections(
    consumers: Consumers, tmp_path: Path, processes: int, threads: int
) -> None:
    go_on = tmp_path / "go-on"
    server = sessions()
    before = server.others()
    command = consumers.start("steady", processes=processes, threads=threads)
    wait_for_shares("steady", processes)
    # Each handler asks the database, and then keeps its thread: all of them are busy at once.
    messages = 16 * processes * threads
    for number in range(messages):
        consumers.publish("steady", f"k{number}", wait_for=str(go_on))
    most = 0

    def watched() -> int:
        nonlocal most
        most = max(most, len(server.others() - before))
        return most

    wait_until(lambda: watched() and len(consumers.noted("begin")) == processes * threads, message="not all are busy")
    bound = processes * (threads + documented())
    wait_until(lambda: watched() >= bound, message=lambda: f"{most} connections; the documents say {bound}")
    assert most == bound  # before threads go on: one that reconnects is seen twice until the server has noticed
    go_on.touch()
    wait_until(lambda: len(consumers.noted("end")) == messages)
    command.terminate()
    assert command.wait() == 0, command.output
    wait_until(lambda: not server.others() - before, message="connections are left behind")


@pytest.mark.database("mariadb", "mysql", "postgresql")
@pytest.mark.session
def test_idle_consumers_threads_have_none(consumers: Consumers) -> None:
    server = sessions()
    before = server.others()
    consumers.start("steady", processes=1, threads=6)
    wait_for_shares("steady", 1)
    wait_until(lambda: len(server.others() - before) == documented())


def test_handlers_that_hang_are_left_within_the_documented_time(
    consumers: Consumers, consumer_options: dict[str, Any], tmp_path: Path
) -> None:
    """TimeoutStopSec and its likes are SHUTDOWN_TIMEOUT and 30 seconds more."""
    consumer_options["SHUTDOWN_TIMEOUT"] = 2
    command = consumers.start("steady", processes=2, threads=2)
    wait_for_shares("steady", 2)
    for number in range(16):
        consumers.publish("steady", f"k{number}", wait_for=str(tmp_path / "never"))
    wait_until(lambda: len(consumers.noted("begin")) == 4)
    command.terminate()
    began = time.monotonic()
    assert command.wait(2 + LAST_SETTLES) == 0, command.output
    assert time.monotonic() - began >= 2, "the stop did not wait for the handlers"
    assert consumers.noted("end") == Counter()
