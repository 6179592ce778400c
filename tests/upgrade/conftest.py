"""The earlier states, each made once in a run, and the course of a test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.upgrade.earlier import LAST_OF_DEVELOPMENT, NoHistory, oldest, unpacked

if TYPE_CHECKING:
    from tests.processes import ManageCommands
    from tests.upgrade.sides import Course


@pytest.fixture(scope="session")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the earlier sqlqueue."""
    return _made(oldest, tmp_path_factory)


@pytest.fixture(scope="session")
def of_development(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the last development version."""
    return _made(lambda: LAST_OF_DEVELOPMENT, tmp_path_factory)


def _made(revision: Callable[[], str], folders: pytest.TempPathFactory) -> Path:
    """Without the history that it takes, the test fails where that was asked for (LONG=1), and is skipped otherwise."""
    try:
        return unpacked(revision(), folders.mktemp("earlier"))
    except NoHistory as error:
        (pytest.fail if os.environ.get("LONG") else pytest.skip)(str(error))


@pytest.fixture
def course(manage: ManageCommands, tmp_path: Path) -> Iterator[Course]:
    """A course on an empty database."""
    from tests.upgrade.sides import Course, empty_database  # the apps are ready only now

    with empty_database(tmp_path) as made:
        yield Course(manage, tmp_path, made)
        manage.end()
