"""A replica of the test database under the alias "replica", which stands still between calls of catch_up()."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections
from pytest_django import DjangoDbBlocker, Settings

from tests.replica.replicas import REPLICA
from tests.servers.postgresql import PrivatePostgreSQL
from tests.servers.standby import Standby

CatchUp = Callable[[], None]


@pytest.fixture
def catch_up(
    request: pytest.FixtureRequest,
    transactional_db: None,
    tmp_path: Path,
    settings: Settings,
    django_db_blocker: DjangoDbBlocker,
) -> Iterator[CatchUp]:
    """SQLQUEUE["READ_ALIAS"] is a replica: PostgreSQL's streaming standby, or a copy of SQLite's file. Returns what
    lets it have all that is committed; nothing reaches it otherwise."""
    made = {"sqlite": _copied_file, "postgresql": _standby}
    if connection.vendor not in made:
        pytest.skip("the replica of the run on PostgreSQL is a real one")
    settings.SQLQUEUE = {"READ_ALIAS": REPLICA, "WAKE": False}
    with django_db_blocker.unblock():  # the alias is not one that the test was given
        yield from made[connection.vendor](request, tmp_path)


def _copied_file(request: pytest.FixtureRequest, folder: Path) -> Iterator[CatchUp]:
    file = folder / "replica.sqlite3"
    with _alias({"NAME": f"file:{file}?mode=ro"}):

        def copy() -> None:
            connections[REPLICA].close()
            connection.ensure_connection()
            with closing(sqlite3.connect(file)) as target:
                connection.connection.backup(target)

        copy()
        yield copy


def _standby(request: pytest.FixtureRequest, folder: Path) -> Iterator[CatchUp]:
    primary = request.getfixturevalue("database_server")
    assert isinstance(primary, PrivatePostgreSQL)
    with Standby(primary) as standby, _alias({"HOST": str(standby.folder), "PORT": standby.port}):
        standby.stand_still(connections[REPLICA])
        yield lambda: standby.catch_up(connection, connections[REPLICA])


class _alias:
    """Adds the alias of the replica while it is entered."""

    def __init__(self, differing: dict[str, Any]) -> None:
        self._settings = {**connection.settings_dict, **differing}

    def __enter__(self) -> None:
        connections.settings[REPLICA] = self._settings

    def __exit__(self, *_: object) -> None:
        connections[REPLICA].close()
        del connections[REPLICA], connections.settings[REPLICA]
