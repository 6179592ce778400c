"""The database of a benchmark: a private server, or a file, with the queue's tables."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.children import children_of
from tests.servers.mariadb import PrivateMariaDB
from tests.servers.mysql import PrivateMySQL
from tests.servers.postgresql import PrivatePostgreSQL

NAMES = ("mariadb", "mysql", "postgresql", "sqlite")


@contextmanager
def migrated(name: str, settings: str = "tests.settings", **environment: str) -> Iterator[int | None]:
    """Set Django up on a database of its own, as in a consumer process, and migrate it. environment: variables that the
    settings read. Yield the server's process id; None for a file."""
    with database(name) as (url, pid):
        os.environ |= {"DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": settings, **environment}
        import django

        django.setup()
        from django.core.management import call_command

        call_command("migrate", run_syncdb=True, verbosity=0)
        from sqlqueue.consumers.process.worker import look_less_often

        look_less_often()
        yield pid


@contextmanager
def database(name: str) -> Iterator[tuple[str, int | None]]:
    """Yield the DATABASE_URL of a private server, or of a file, and the server's process id."""
    if name == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:///{Path(folder, 'benchmark.sqlite3')}", None
        return
    servers = {"mariadb": PrivateMariaDB, "mysql": PrivateMySQL}
    with servers[name]() if name in servers else PrivatePostgreSQL(durable=True) as server:
        yield server.url("mysql" if name in servers else "postgres"), server.pid


def cpu_seconds(pid: int | None) -> float:
    """Return the CPU time that a server has had, with that of the processes of its present connections."""
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime and stime, after the name
    return own + sum(map(cpu_seconds, children_of(pid)))
