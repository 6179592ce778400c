"""The servers of the comparison, a database on them for each peer, and counters of their statements."""

import re
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.benchmarks.peers.adapters import SERVERS
from tests.servers.mariadb import PrivateMariaDB
from tests.servers.postgresql import PrivatePostgreSQL
from tests.servers.redis import PrivateRedis

# What is counted, of each kind of server.
COUNTED = {"postgresql": "statements", "mariadb": "statements", "redis": "Redis commands", "sqlite": "statements"}


class Servers:
    """Those that the named peers need; leaving the `with` block ends them."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self._stack = ExitStack()
        self._redis_databases = 0
        self.versions: dict[str, str] = {}

    def __enter__(self) -> "Servers":
        kinds = {SERVERS.get(name, "postgresql") for name in self.names}
        with self._stack:
            self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="sqlqueue-peers-")))
            if kinds & {"postgresql", "redis"}:
                options = ("shared_preload_libraries=pg_stat_statements", "pg_stat_statements.max=10000")
                self.postgresql = self._stack.enter_context(PrivatePostgreSQL(durable=True, options=options))
                self._admin = self._stack.enter_context(postgresql_connection(self.postgresql.url("postgres")))
                self._admin.execute("CREATE EXTENSION pg_stat_statements")
                self.versions["PostgreSQL"] = self._admin.execute("SHOW server_version").fetchone()[0].split()[0]
            if "mariadb" in kinds:
                self.mariadb = self._stack.enter_context(PrivateMariaDB())
                self.versions["MariaDB"] = self._mariadb("SELECT version()")[0].partition("-")[0]
            if "redis" in kinds:
                self.redis = self._stack.enter_context(PrivateRedis())
                self.versions["Redis"] = re.search(r"redis_version:(\S+)", self.redis.ask("INFO server"))[1]
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def environment(self, name: str) -> tuple[dict[str, str], Callable[[], int] | None]:
        """Make a peer's database; return the variables that name it, and what counts its statements so far."""
        kind, database = SERVERS.get(name, "postgresql"), "peer_" + name.replace("-", "_")
        if kind == "sqlite":
            return {"DATABASE_URL": f"sqlite:///{self.folder / database}.sqlite3"}, None
        if kind == "mariadb":
            self._mariadb(f"CREATE DATABASE {database}")
            return {"DATABASE_URL": self.mariadb.url(database)}, self._count_mariadb
        self._admin.execute(f"CREATE DATABASE {database}")
        variables = {"DATABASE_URL": self.postgresql.url(database)}
        if kind == "postgresql":
            return variables, lambda: self._count_postgresql(database)
        self._redis_databases += 1
        return {**variables, "REDIS_URL": self.redis.url(str(self._redis_databases))}, self._count_redis

    def _count_postgresql(self, database: str) -> int:
        total = (
            "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements"
            " WHERE dbid = (SELECT oid FROM pg_database WHERE datname = %s)"
        )
        return self._admin.execute(total, (database,)).fetchone()[0]

    def _count_mariadb(self) -> int:
        """Count all but what asks for the count: it connects, asks, and is asked again for what that costs."""
        first, second = (int(self._mariadb("SHOW GLOBAL STATUS LIKE 'Questions'")[1]) for _ in range(2))
        self._own = getattr(self, "_own", 0) + 2 * (second - first)
        return second - self._own

    def _count_redis(self) -> int:
        own = {"info", "hello", "client|setinfo", "ping"}
        found = re.findall(r"cmdstat_(\S+?):calls=(\d+)", self.redis.ask("INFO commandstats"))
        return sum(int(calls) for command, calls in found if command not in own)

    def _mariadb(self, statement: str) -> Any:
        import MySQLdb

        connection = MySQLdb.connect(host="127.0.0.1", port=self.mariadb.port, user="root", autocommit=True)
        try:
            cursor = connection.cursor()
            cursor.execute(statement)
            return cursor.fetchone()
        finally:
            connection.close()


def postgresql_connection(url: str) -> Any:
    import psycopg

    return psycopg.connect(url, autocommit=True)
