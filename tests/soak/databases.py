"""The database under a run: a private server behind two proxies, or an SQLite file; and what can be done to it."""

import contextlib
import os
import shutil
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from tests.servers.mariadb import PrivateMariaDB
from tests.servers.private import PrivateServer
from tests.soak.proxy import Proxy
from tests.soak.system import all_pids, opens
from tests.soak.workload import IDLE_TIMEOUT, PACKET

NAME = "soak"
USER = "app"  # no superuser: those may write to a server that is read-only
FILE_SYSTEM_BYTES = 512 * 1024 * 1024


class Impossible(Exception):
    """This fault cannot be done on this machine; the message says why."""


class Database:
    """What a run needs of its database. `url` is the harness's own way, the others are the processes'."""

    url: str
    consumers_url: str
    publishers_url: str
    lacks: dict[str, str] = {}
    environment: dict[str, str] = {}
    """What its processes need in theirs, beside a URL."""
    aliases: tuple[str, ...] = ("default",)
    """Of the databases, in the order of their names; without databases of the one database."""
    databases_of_faults: dict[str, str] = {}
    """The database that a fault is done to, by its name; the others are done to everybody."""

    def start(self) -> None:
        """Start it, empty."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Do what the harness's own connection has to do before the tables are made."""

    def close(self) -> None:
        """End it and remove all it wrote."""
        raise NotImplementedError

    def clients(self) -> int:
        """Return how many connections there are, beside the harness's own."""
        return 0

    def faults(self) -> dict[str, Callable[[float], object]]:
        """Return what can be done to it, by the name of the fault; each call takes seconds and ends the fault. What it
        returns, if that can be called, is done before the next fault."""
        raise NotImplementedError


class ServerDatabase(Database):
    """A private server, and a proxy each for consumers and publishers."""

    def __init__(self, server: PrivateServer, vendor: "Vendor") -> None:
        self.server, self.vendor = server, vendor
        self.proxies: dict[str, Proxy] = {}

    def start(self) -> None:
        self.server.start()
        self.proxies = {side: Proxy(self.server.port) for side in ("consumers", "publishers")}
        for proxy in self.proxies.values():
            proxy.start()
        self.url = self.server.url(NAME)
        self.consumers_url, self.publishers_url = (
            self.server.url(NAME, port=self.proxies[side].port, user=USER) for side in ("consumers", "publishers")
        )

    def prepare(self) -> None:
        from django.db import connection

        with connection._nodb_cursor() as cursor:
            for statement in self.vendor.preparations:
                cursor.execute(statement)

    def close(self) -> None:
        for proxy in self.proxies.values():
            proxy.close()
        self.server.close()

    def clients(self) -> int:
        return int(query(self.vendor.count_clients)[0][0])

    def faults(self) -> dict[str, Callable[[float], object]]:
        faults: dict[str, Callable[[float], object]] = {
            "kill-server": lambda seconds: self._away(self.server.kill, seconds),
            "restart-server": lambda seconds: self._away(self.server.stop, seconds),
            "stop-server": self._freeze,
            "read-only": self._read_only,
        }
        for side, proxy in self.proxies.items():
            faults |= {
                f"cut-{side}": lambda seconds, proxy=proxy: proxy.cut(),
                f"delay-{side}": lambda seconds, proxy=proxy: spell(proxy, lambda: proxy.delay(0.05), seconds),
                f"lose-replies-{side}": lambda seconds, proxy=proxy: spell(proxy, proxy.lose_replies, seconds),
                f"silence-{side}": lambda seconds, proxy=proxy: spell(proxy, proxy.blackhole, seconds),
            }
        return faults

    def _away(self, end: Callable[[], None], seconds: float) -> None:
        from django.db import connections

        try:
            end()
            time.sleep(seconds)
        finally:
            self.server.start()
            connections.close_all()

    def _freeze(self, seconds: float) -> None:
        with self.server.frozen():
            time.sleep(seconds)

    def _read_only(self, seconds: float) -> None:
        try:
            for statement in self.vendor.read_only:
                query(statement)
            time.sleep(seconds)
        finally:
            for statement in self.vendor.read_write:
                query(statement)


class Vendor:
    """What differs by the server's vendor: how the harness prepares it, counts clients, and makes it read-only."""

    def __init__(self, preparations: list[str], count_clients: str, read_only: list[str], read_write: list[str]):
        self.preparations, self.count_clients = preparations, count_clients
        self.read_only, self.read_write = read_only, read_write


MYSQL = Vendor(
    [
        f"CREATE DATABASE {NAME}",
        f"CREATE USER {USER}@'127.0.0.1' IDENTIFIED BY ''",
        f"GRANT ALL ON {NAME}.* TO {USER}@'127.0.0.1'",
    ],
    f"SELECT COUNT(*) FROM information_schema.processlist WHERE user = '{USER}'",
    # It waits for commits that are under way; not for long.
    ["SET SESSION lock_wait_timeout = 5", "SET GLOBAL read_only = 1"],
    ["SET GLOBAL read_only = 0"],
)
POSTGRESQL = Vendor(
    [f"CREATE ROLE {USER} LOGIN", f"CREATE DATABASE {NAME} OWNER {USER}"],
    f"SELECT COUNT(*) FROM pg_stat_activity WHERE usename = '{USER}'",
    ["ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()"],
    # The harness's own session has become read-only, too; ALTER SYSTEM does not mind.
    ["ALTER SYSTEM SET default_transaction_read_only = off", "SELECT pg_reload_conf()"],
)


class FileDatabase(Database):
    """An SQLite file, on a small file system of its own where one can be mounted."""

    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sqlqueue-soak-"))
        mount = ["mount", "-t", "tmpfs", "-o", f"size={FILE_SYSTEM_BYTES}", "tmpfs", str(self.folder)]
        self.mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
        self.file = self.folder / "soak.sqlite3"
        self.url = self.consumers_url = self.publishers_url = f"sqlite:///{self.file}"

    def close(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def clients(self) -> int:
        """Count the processes that have the file open, beside this one."""
        return sum(opens(pid, self.file) for pid in all_pids() if pid != os.getpid())

    def faults(self) -> dict[str, Callable[[float], object]]:
        return {"lock-database": self._lock, "disk-full": self._fill}

    def _lock(self, seconds: float) -> None:
        """Hold the writer's lock, as another process's long transaction does."""
        with contextlib.closing(sqlite3.connect(self.file, timeout=30, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            time.sleep(seconds)
            connection.execute("ROLLBACK")

    def _fill(self, seconds: float) -> None:
        if not self.mounted:
            raise Impossible("no file system can be mounted here (root only)")
        filler = self.folder / "filler"
        try:
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(1 << 20))
            time.sleep(seconds)
        finally:
            filler.unlink(missing_ok=True)


def make(name: str, phases: Collection[str] = ()) -> Database:
    """Return the database that is called so: sqlite, mariadb, mysql or postgresql, as these phases need it."""
    database: Database
    if name == "sqlite":
        database = FileDatabase()
    elif name == "mariadb":
        database = ServerDatabase(PrivateMariaDB(options=words(MYSQL_WORDS, phases)), MYSQL)
    elif name == "mysql":
        from tests.servers.mysql import PrivateMySQL

        database = ServerDatabase(PrivateMySQL(options=words(MYSQL_WORDS, phases)), MYSQL)
    else:
        from tests.servers.postgresql import PrivatePostgreSQL

        database = ServerDatabase(PrivatePostgreSQL(), IMPATIENT_POSTGRESQL if "idle" in phases else POSTGRESQL)
    database.lacks = LACKS[name]
    return database


# What the server is started with for a phase. Idle connections of the processes are ended, the harness's own are not:
# what init_connect says is not for those who may do everything.
MYSQL_WORDS = {
    "heavy": f"--max-allowed-packet={PACKET}",
    "errors": f"--max-allowed-packet={PACKET}",
    "language": "--lc-messages=de_DE",
    "idle": f"--init-connect=SET SESSION wait_timeout = {IDLE_TIMEOUT}",
}
IMPATIENT_POSTGRESQL = Vendor(
    [*POSTGRESQL.preparations, f"ALTER ROLE {USER} SET idle_session_timeout = '{IDLE_TIMEOUT}s'"],
    POSTGRESQL.count_clients,
    POSTGRESQL.read_only,
    POSTGRESQL.read_write,
)
NO_SERVER = "SQLite has no server"
LACKS = {
    "mariadb": {},
    "mysql": {},
    "postgresql": {"language": "PostgreSQL's messages are read by number alone, and need the system's locale"},
    "sqlite": dict.fromkeys(("async", "idle", "language"), NO_SERVER),
}


def words(by_phase: dict[str, str], phases: Collection[str]) -> tuple[str, ...]:
    """Return what a server is started with for these phases, each word once."""
    return tuple(dict.fromkeys(word for phase, word in by_phase.items() if phase in phases))


def query(statement: str) -> list[tuple[Any, ...]]:
    """Run a statement on the harness's own connection, in autocommit."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


def spell(proxy: Proxy, begin: Callable[[], None], seconds: float) -> None:
    """Let something be wrong with a network for so long."""
    begin()
    try:
        time.sleep(seconds)
    finally:
        proxy.restore()
