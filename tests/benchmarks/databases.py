"""The database of a benchmark: a private server, or a file, with the queue's tables."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.mariadb import PrivateMariaDB
from tests.servers.mysql import PrivateMySQL
from tests.servers.postgresql import PrivatePostgreSQL

NAMES = ("mariadb", "mysql", "postgresql", "sqlite")


@contextmanager
def migrated(name: str, settings: str = "tests.settings", **environment: str) -> Iterator[None]:
    """Set Django up on a database of its own, and migrate it. environment: variables that the settings read."""
    with database(name) as url:
        os.environ |= {"DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": settings, **environment}
        import django

        django.setup()
        from django.core.management import call_command

        call_command("migrate", run_syncdb=True, verbosity=0)
        yield


@contextmanager
def database(name: str) -> Iterator[str]:
    """Yield the DATABASE_URL of a private server, or of a file."""
    if name == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:///{Path(folder, 'benchmark.sqlite3')}"
        return
    servers = {"mariadb": PrivateMariaDB, "mysql": PrivateMySQL}
    with servers[name]() if name in servers else PrivatePostgreSQL(durable=True) as server:
        yield server.url("mysql" if name in servers else "postgres")
