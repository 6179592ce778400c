"""A queue of two shards: the test database, and another one beside it."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_django import Settings

    from tests.servers.private import PrivateServer


@pytest.fixture
def shards(transactional_db: None, settings: "Settings", tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Let the log be on the shards a (the test database, which is DATABASE) and b; the value is the setting."""
    from tests.consuming import QUICK  # the apps are ready only now
    from tests.shards.aliases import SHARDS, B, further, url_of

    with further({B: url_of(B, tmp_path)}):
        settings.DATABASE_ROUTERS = ["sqlqueue.database.router.Router"]
        settings.SQLQUEUE = QUICK | {"SHARDS": SHARDS}
        yield settings.SQLQUEUE
        settings.SQLQUEUE = QUICK


@pytest.fixture
def second_server(transactional_db: None, database_name: str, tmp_path: Path) -> "Iterator[PrivateServer | None]":
    """A server of its own for shard b; SQLite has none, but a file."""
    from tests.servers import PRIVATE
    from tests.shards.aliases import B, further, url_of

    if database_name == "sqlite":
        with further({B: url_of(B, tmp_path)}):
            yield None
        return
    server = PRIVATE[database_name]()
    server.start()
    try:
        with further({B: server.url("shard_b")}):
            yield server
    finally:
        server.close()
