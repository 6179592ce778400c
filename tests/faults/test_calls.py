"""A caller gets the reply of the attempt that was acked, whatever was killed before."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from django.db import connections

from sqlqueue import call
from tests.consumer_processes import Consumers, heartbeats
from tests.processes import wait_until

pytestmark = [pytest.mark.long("sqlite"), pytest.mark.django_db(transaction=True)]
LONG = 60  # seconds


def test_the_reply_comes_from_the_successor_of_a_killed_process(consumers: Consumers, tmp_path: Path) -> None:
    consumers.start("called")
    wait_until(heartbeats)
    replies: list[Any] = []

    def ask() -> None:
        try:
            replies.append(
                call("called", {"notes": str(consumers.notes), "wait_for": str(tmp_path / "go")}, timeout=LONG)
            )
        finally:
            connections.close_all()

    caller = threading.Thread(target=ask)
    caller.start()
    wait_until(lambda: consumers.noted("begin"))
    (pid,) = heartbeats().values()
    os.kill(pid, signal.SIGKILL)
    caller.join(LONG)
    assert replies == [2]
    assert sorted(attempt for _, attempt in consumers.noted("begin")) == [1, 2]
