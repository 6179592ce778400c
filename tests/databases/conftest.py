"""A queue of two databases: the test database, and another one beside it."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_django import Settings

    from tests.servers.private import PrivateServer


@pytest.fixture
def databases(transactional_db: None, settings: "Settings", tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Let topics be on two databases: the test database, which is DATABASE, and another one; the value is the
    setting."""
    from tests.consuming import QUICK  # the apps are ready only now
    from tests.databases.aliases import B, further, spread, url_of

    with further({B: url_of(B, tmp_path)}):
        settings.DATABASE_ROUTERS = ["sqlqueue.database.router.Router"]
        settings.SQLQUEUE = QUICK | spread("t", "u", "orders", "only", "v")
        yield settings.SQLQUEUE
        settings.SQLQUEUE = QUICK


@pytest.fixture
def second_server(transactional_db: None, database_name: str, tmp_path: Path) -> "Iterator[PrivateServer | None]":
    """A server of its own for database b; SQLite has none, but a file."""
    from tests.databases.aliases import B, further, url_of
    from tests.servers import PRIVATE

    if database_name == "sqlite":
        with further({B: url_of(B, tmp_path)}):
            yield None
        return
    server = PRIVATE[database_name]()
    server.start()
    try:
        with further({B: server.url("database_b")}):
            yield server
    finally:
        server.close()
