"""`runconsumers` with DEBUG on: it restarts when code changes, and loses nothing by that."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sqlqueue import publish
from tests.processes import ROOT, ManageCommand

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
