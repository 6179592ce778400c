"""The demo's own database file: the only one that the demo may remove, and never while it is in use."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.conf import settings
from django.db import connection, connections


class DemoDatabaseInUse(Exception):
    """The demo or the site is running on this checkout already."""


def is_demo_database() -> bool:
    """Return whether the default database is the demo's own SQLite file."""
    return connection.vendor == "sqlite" and connection.settings_dict["NAME"] == str(settings.DEMO_DATABASE)


def remove_demo_database() -> bool:
    """Remove the demo's file and return whether there was one; the caller has checked is_demo_database()."""
    connections.close_all()
    existed = Path(settings.DEMO_DATABASE).exists()
    for suffix in ("", "-wal", "-shm"):
        Path(f"{settings.DEMO_DATABASE}{suffix}").unlink(missing_ok=True)
    return existed


@contextmanager
def demo_in_use() -> Iterator[None]:
    """Hold the demo's lock while the body runs; it ends with this process. Raises DemoDatabaseInUse."""
    with (settings.VAR_DIR / "demo.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DemoDatabaseInUse("The demo or the site is running here already: end it first.") from error
        yield
