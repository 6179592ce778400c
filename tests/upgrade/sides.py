"""Processes of an earlier sqlqueue and of the present one, side by side on a database of their own."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.db import connections

from tests.processes import ManageCommand, ManageCommands, wait_until
from tests.upgrade.earlier import ROOT

PROJECT = Path(__file__).resolve().parent / "project"
QUICK: dict[str, Any] = {
    "PARTITIONS": 4,
    "HEARTBEAT_INTERVAL": 0.5,
    "BALANCE_INTERVAL": 0.1,
    "IDLE_POLL_INTERVAL": 0.05,
    "FLUSH_INTERVAL": 0.1,
}
LOCKED = 5  # times that a migration may give up because a table is in use
PATIENCE = 240  # seconds


@contextmanager
def empty_database(folder: Path) -> Iterator[dict[str, Any]]:
    """Make an empty database beside the test database; the value is its settings."""
    config = connections["default"].settings_dict
    kept = {key: config[key] for key in ("ENGINE", "USER", "PASSWORD", "HOST", "PORT", "OPTIONS")}
    if connections["default"].vendor == "sqlite":
        yield kept | {"NAME": str(folder / "upgrade.sqlite3")}
        return
    name = f"{config['NAME']}_upgrade"
    _on_server(f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name}")
    yield kept | {"NAME": name}
    _on_server(f"DROP DATABASE {name}")


def _on_server(*texts: str) -> None:
    with connections["default"]._nodb_cursor() as cursor:
        for text in texts:
            cursor.execute(text)


class Side:
    """One version's processes. A side's consumers note what they handle under its name."""

    def __init__(self, name: str, package: Path, course: Course) -> None:
        self.name, self._package, self._course = name, package, course

    def manage(self, *words: str) -> ManageCommand:
        """Start a command."""
        return self._course.manage(*words, script=PROJECT / "manage.py", env=self._environment())

    def migrate(self) -> None:
        """Migrate the database; again, as the documentation says, where a table is in use."""
        for _ in range(LOCKED):
            command = self.manage("migrate")
            if command.wait(300) == 0:
                return
            assert "waited too long" in command.output, command.output
        raise AssertionError(command.output)

    def consume(self) -> ManageCommand:
        """Start consumers; return when they have begun."""
        command = self.manage("runconsumers", "--processes=1", "--threads=2")
        command.wait_for_line("subscriber_started")
        return command

    def publish(self, name: str) -> ManageCommand:
        """Start a publisher of this name's keys, which goes on where the last one of the name has ended; return when it
        has published."""
        command = self.manage("publish_numbers", name, str(self._course.numbers(name)))
        command.wait_for_line("publishes")
        return command

    def _environment(self) -> dict[str, str]:
        return {
            "PYTHONPATH": str(self._package),
            "PACKAGE": str(self._package),
            "DJANGO_SETTINGS_MODULE": "shop.settings",
            "SIDE": self.name,
            "NOTES": str(self._course.notes),
            "SQLQUEUE": json.dumps(QUICK),
            "DATABASES": json.dumps({"default": self._course.database}),
        }


class Course:
    """What is published and handled on both sides, in the tables and in files."""

    def __init__(self, manage: ManageCommands, folder: Path, database: dict[str, Any]) -> None:
        self.manage, self.folder, self.database = manage, folder, database
        self.notes = folder / "notes"
        self.notes.touch()
        self.new = Side("new", ROOT, self)

    def old(self, package: Path) -> Side:
        """Return the side of an earlier sqlqueue."""
        return Side("old", package, self)

    def execute(self, *texts: str) -> None:
        """Execute statements on the database."""
        connection = connections["default"].copy()
        connection.settings_dict = {**connection.settings_dict, **self.database}
        with connection.cursor() as cursor:
            for text in texts:
                cursor.execute(text)
        connection.close()

    def numbers(self, name: str) -> Path:
        """Return the file of a publisher's numbers."""
        return self.folder / f"{name}.numbers"

    def published(self, name: str) -> dict[str, int]:
        """Return how many messages each key of a publisher has."""
        file = self.numbers(name)
        return json.loads(file.read_text()) if file.exists() else {}

    def handled(self, of: str = "", by: str = "") -> dict[str, list[int]]:
        """Return the numbers of each key's messages as they were handled. of: a publisher's only; by: by a side."""
        found: dict[str, list[int]] = defaultdict(list)
        for line in self.notes.read_text().splitlines():
            side, id = line.split()
            key, number = id.rsplit("-", 1)
            if key.startswith(of) and by in ("", side):
                found[key].append(int(number))
        return found

    def wait_for_more(self, of: str, by: str, *commands: ManageCommand) -> None:
        """Wait until a side has handled some more of what a publisher publishes from now on."""
        before = sum(self.published(of).values())

        def some() -> bool:
            numbers = self.handled(of, by).values()
            return sum(map(max, numbers)) > before + 6 if numbers else False

        self._wait(some, commands, f"{by} handles {of}")

    def check(self, *names: str, commands: tuple[ManageCommand, ...] = ()) -> None:
        """Wait until all is handled that was published: each message once, those of a key in order."""
        expected = {key: count for name in names for key, count in self.published(name).items()}
        assert expected
        self._wait(
            lambda: all(len(self.handled()[key]) >= count for key, count in expected.items()),
            commands,
            f"{expected} handled",
        )
        found = self.handled()
        for key, count in expected.items():
            extra = found[key][count:]  # of a publisher that failed: committed, and not told
            assert found[key][:count] == list(range(count)), (key, found[key])
            assert extra in ([], [count]), (key, found[key])

    def _wait(self, condition: Callable[[], bool], commands: tuple[ManageCommand, ...], what: str) -> None:
        wait_until(condition, PATIENCE, lambda: "\n".join([what, *(command.output[-3000:] for command in commands)]))


def end(*commands: ManageCommand) -> None:
    """End processes gracefully."""
    for command in commands:
        command.terminate()
    for command in commands:
        assert command.wait(120) == 0, command.output
