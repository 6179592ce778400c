"""The database that the suite runs on, chosen by two environment variables.

DATABASE is `sqlite` (the default), `mariadb`, `mysql` or `postgresql`. DATABASE_URL names a server that is there
already; without it `sqlite` is a file in a temporary folder, and the others are private servers. With POOLER=1 a
private PgBouncer stands in front of a private PostgreSQL server.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.servers.mariadb import PrivateMariaDB
from tests.servers.mysql import PrivateMySQL
from tests.servers.pgbouncer import PrivatePgBouncer
from tests.servers.postgresql import PrivatePostgreSQL
from tests.servers.private import PrivateServer

NAMES = ("sqlite", "mariadb", "mysql", "postgresql")
PRIVATE: dict[str, type[PrivateServer]] = {
    "mariadb": PrivateMariaDB,
    "mysql": PrivateMySQL,
    "postgresql": PrivatePostgreSQL,
}
# A commit does not wait for the disk: only the crash of the machine, not the server's, can tell the difference.
WITHOUT_WAITING: Mapping[str, Any] = {
    name: {"options": ("--innodb-flush-log-at-trx-commit=2",)} for name in ("mariadb", "mysql")
}
# mysql:// is both servers' scheme: DATABASE says which it is, and tests/test_databases.py holds it to that.
NAME_BY_SCHEME = {
    "sqlite": "sqlite",
    "mysql": "mariadb",
    "postgres": "postgresql",
    "postgresql": "postgresql",
    "psql": "postgresql",
}


class DatabaseChoiceError(Exception):
    """The environment asks for a database that the suite cannot have; the message says what to do."""


class TestDatabase:
    """The database of one run of the suite: `name`, `url`, and `server` where it is our own."""

    __test__ = False

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.url = url
        self.server: PrivateServer | None = None
        self.pooler: PrivatePgBouncer | None = None
        self._folder: tempfile.TemporaryDirectory | None = None

    @property
    def place(self) -> str:
        """Where the database is, without a password."""
        return self.url.rpartition("@")[2].removeprefix("sqlite:///")

    @classmethod
    def start(cls, environment: Mapping[str, str]) -> "TestDatabase":
        """Choose by the environment, and start what has to be started. Raise DatabaseChoiceError otherwise."""
        name, url = choose(environment)
        database = cls(name, url)
        if url:
            return database
        if name == "sqlite":
            database._folder = tempfile.TemporaryDirectory(prefix="sqlqueue-")
            database.url = f"sqlite:///{Path(database._folder.name) / 'sqlqueue.sqlite3'}"
        else:
            database.server = PRIVATE[name](**WITHOUT_WAITING.get(name, {}))
            database.server.start()
            database.url = database.server.url("sqlqueue")
        if isinstance(database.server, PrivatePostgreSQL) and environment.get("POOLER"):
            database.pooler = PrivatePgBouncer(database.server)
            database.pooler.start()
            database.url = database.pooler.url("sqlqueue")
        return database

    def end(self) -> None:
        """End what start() started."""
        if self.pooler:
            self.pooler.close()
        if self.server:
            self.server.close()
        if self._folder:
            self._folder.cleanup()


def choose(environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the database's name and its URL (empty: one of our own has to be started)."""
    url = environment.get("DATABASE_URL", "")
    scheme = url.partition("://")[0]
    if url and scheme not in NAME_BY_SCHEME:
        raise DatabaseChoiceError(f"DATABASE_URL begins with {scheme!r}: known are {', '.join(NAME_BY_SCHEME)}.")
    name = environment.get("DATABASE") or NAME_BY_SCHEME.get(scheme, "sqlite")
    if name not in NAMES:
        raise DatabaseChoiceError(f"DATABASE={name} is unknown: choose one of {', '.join(NAMES)}.")
    if url and {name, NAME_BY_SCHEME[scheme]} not in ({name}, {"mysql", "mariadb"}):
        raise DatabaseChoiceError(f"DATABASE={name} does not go with a DATABASE_URL of {scheme}://.")
    if environment.get("POOLER") and (url or name != "postgresql"):
        raise DatabaseChoiceError("POOLER goes with DATABASE=postgresql, and without DATABASE_URL.")
    return name, url
