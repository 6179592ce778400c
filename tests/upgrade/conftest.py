"""The earlier states, each made once in a run, and the course of a test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.upgrade.earlier import NoHistory, before, last_migration, last_release, unpacked

if TYPE_CHECKING:
    from tests.processes import ManageCommands
    from tests.upgrade.sides import Course

Earlier = Callable[[str], Path]
RELEASE, BEFORE_LAST_MIGRATION = "release", "before the last migration"


@pytest.fixture(scope="session")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Earlier:
    """Return the folder of an earlier sqlqueue: of the last release, or of the newest state before a migration, or
    before the last one.

    Without the history that takes it fails where that was asked for (LONG=1), and is skipped otherwise.
    """
    made: dict[str, Path] = {}

    def earlier(name: str) -> Path:
        try:
            migration = last_migration() if name == BEFORE_LAST_MIGRATION else name
            revision = last_release() if name == RELEASE else before(migration)
            if revision not in made:
                made[revision] = unpacked(revision, tmp_path_factory.mktemp("earlier"))
        except NoHistory as error:
            (pytest.fail if os.environ.get("LONG") else pytest.skip)(str(error))
        return made[revision]

    return earlier


@pytest.fixture
def course(manage: ManageCommands, tmp_path: Path) -> Iterator[Course]:
    """A course on one empty database."""
    from tests.upgrade.sides import Course, databases  # the apps are ready only now

    with databases(folder=tmp_path) as made:
        yield Course(manage, tmp_path, made, {})
        manage.end()


@pytest.fixture
def sharded_course(manage: ManageCommands, tmp_path: Path) -> Iterator[Course]:
    """A course on the shards a and b; the topic "orders" is on the first, "spread" on both."""
    from tests.upgrade.sides import Course, databases

    shards = {"a": {"alias": "default"}, "b": {"alias": "queue_b"}}
    options: dict[str, Any] = {
        "SHARDS": shards,
        "TOPICS": {"orders": {"shards": ["a"]}, "spread": {"shards": ["a", "b"]}},
    }
    with databases("queue_b", folder=tmp_path) as made:
        yield Course(manage, tmp_path, made, options)
        manage.end()
