"""`runconsumers` with DEBUG on: it restarts when code changes, and loses nothing by that."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sqlqueue import publish
from sqlqueue.models import PartitionLease
from tests.processes import ROOT, ManageCommand, wait_until
from tests.progress import settled

pytestmark = pytest.mark.once

SETTINGS = """
from tests.management.settings import *

DEBUG = True
INSTALLED_APPS = [*INSTALLED_APPS, "reloaded"]
LOGGING = {
    "version": 1,
    "filters": {"of_code": {"()": lambda: lambda record: "handlers.py" in record.getMessage()}},
    "handlers": {"console": {"class": "logging.StreamHandler", "filters": ["of_code"]}},
    "loggers": {"django.utils.autoreload": {"handlers": ["console"], "level": "DEBUG"}},
}
"""
HANDLER = """
from sqlqueue import consumer

@consumer("reloaded", group="reloaded")
def handle(delivery):
    print(f"version {0} handles {{delivery.payload}}", flush=True)
"""

Run = Callable[..., ManageCommand]


@pytest.fixture
def code(tmp_path: Path) -> Iterator[Path]:
    """The file with the handler."""
    (tmp_path / "reloaded_settings.py").write_text(SETTINGS)
    (tmp_path / "reloaded").mkdir()
    (tmp_path / "reloaded" / "__init__.py").touch()
    file = tmp_path / "reloaded" / "handlers.py"
    file.write_text(HANDLER.format(1))
    return file


def save(command: ManageCommand, code: Path, text: str) -> None:
    """Change the file, in a way that its time shows, once the process that runs now watches it."""
    known = int(code.stat().st_mtime)
    command.wait_for_line(f"^File {code} first seen with mtime {known}")
    code.write_text(text)
    os.utime(code, (known + 10, known + 10))


def test_code_that_cannot_be_imported_waits_for_the_next_change(run: Run, code: Path, tmp_path: Path) -> None:
    """And a change is no death of a process: nothing is counted or logged as one."""
    env = {"DJANGO_SETTINGS_MODULE": "reloaded_settings", "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    command = run("--topic", "reloaded", env=env)
    publish("reloaded", "a")
    command.wait_for_line("^version 1 handles a$")
    save(command, code, HANDLER.format(2) + "\ndef half(")
    command.wait_for_line("^SyntaxError")
    publish("reloaded", "b")
    save(command, code, HANDLER.format(2).replace("@consumer(", "@consumed("))
    command.wait_for_line("^NameError")
    save(command, code, HANDLER.format(2))
    command.wait_for_line("^version 2 handles b$")
    assert "process_died" not in command.output
    assert command.returncode is None


# A process whose loop hangs is replaced, and its log says where it was.


@pytest.mark.parametrize("topic", ["hang", "deaf"])
def test_a_process_whose_loop_hangs_is_replaced_and_its_log_says_where_it_was(run: Run, topic: str) -> None:
    """Also one that holds Python's lock, so that none of its threads can do anything, not even stop."""
    command = run("--topic", topic, HUNG_AFTER=2, HEARTBEAT_INTERVAL=0.5, LEASE_DURATION=2)
    publish(topic, 1)
    command.wait_for_line(r"event=process_hangs")
    command.wait_for_line(r'File ".*handlers.py", line \d+ in hang')
    if topic == "hang":
        command.wait_for_line(r"event=loop_hangs .*at=.*handlers.py")
    first = command.wait_for_line(r"event=process_died .*subscriber=(\S+)")[1]
    wait_until(lambda: PartitionLease.objects.filter(topic=topic).exclude(holder__in=["", first]).exists())
    assert settled(topic, "aircraft"), "what had been settled before comes again"
