"""A queue of two shards: the test database, and another one beside it."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_django import Settings


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
