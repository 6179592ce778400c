"""What the server is, and whether the queue's promises hold on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from django.db import connections

from sqlqueue.database.nodes import cluster

MARIADB_LEAST = (10, 6)  # SKIP LOCKED
MYSQL_LEAST = (8, 0, 17)  # SKIP LOCKED, expression defaults, a binary collation that does not pad
POSTGRESQL_LEAST = (14,)
SQLITE_LEAST = (3, 35)  # RETURNING
ISOLATION_LEVELS = ("READ-COMMITTED", "REPEATABLE-READ")


class Finding(NamedTuple):
    """Something about the server: its check's number, whether it is an error, what is wrong, and what to do."""

    number: int
    error: bool
    text: str
    hint: str


def findings(alias: str) -> Iterator[Finding]:
    """Yield what speaks against this server. Opens a connection."""
    vendor = connections[alias].vendor
    if vendor == "mysql":
        yield from _mysql(alias)
    elif vendor == "sqlite":
        yield from _sqlite(alias)
    elif vendor == "postgresql":
        yield from _postgresql(alias)
    else:
        text = f"sqlqueue runs on MySQL, MariaDB, PostgreSQL and SQLite, not on {vendor}"
        yield Finding(2, True, text, "Name an alias on one of those in SQLQUEUE['DATABASE'].")


def _too_old(name: str, version: tuple[int, ...], least: tuple[int, ...]) -> Iterator[Finding]:
    if version < least:
        is_, wanted = (".".join(map(str, numbers)) for numbers in (version, least))
        yield Finding(2, True, f"{name} {is_} is too old: sqlqueue needs {wanted} or later", f"Upgrade {name}.")


def _mysql(alias: str) -> Iterator[Finding]:
    connection = connections[alias]
    mariadb = connection.mysql_is_mariadb  # type: ignore[attr-defined]
    name, least = ("MariaDB", MARIADB_LEAST) if mariadb else ("MySQL", MYSQL_LEAST)
    yield from _too_old(name, connection.mysql_version, least)  # type: ignore[attr-defined]
    with connection.cursor() as cursor:
        isolation = "tx_isolation" if mariadb and connection.mysql_version < (11, 1) else "transaction_isolation"  # type: ignore[attr-defined]
        cursor.execute(f"SELECT @@{isolation}, @@sql_mode, @@auto_increment_increment, @@innodb_autoinc_lock_mode")
        level, mode, increment, autoincrement = cursor.fetchone()
    if level not in ISOLATION_LEVELS:
        text = f"the isolation level is {level}; the horizon was proven at {' and '.join(ISOLATION_LEVELS)}"
        yield Finding(3, True, text, "Set OPTIONS['isolation_level'] = 'read committed', Django's default.")
    if "STRICT" not in mode.upper():
        text = "the SQL mode is not strict: MySQL would cut what is too long, and accept a missing gate"
        yield Finding(4, True, text, "Set OPTIONS['init_command'] = \"SET sql_mode = 'STRICT_TRANS_TABLES'\".")
    if increment != 1:
        text = f"auto_increment_increment is {increment}: several primaries hand out interleaved offsets"
        yield Finding(
            5, True, text, "sqlqueue needs one primary at a time: write to one node only, with an increment of 1."
        )
    several = cluster(alias)
    if several is not None:
        size = f" of {several.nodes} nodes" if several.nodes else ""
        text = (
            f"{several.kind}{size}: what is published through another node than the consumers' may be missed for good"
        )
        hint = "Let one node be written to, by publishers and consumers alike; another one only once that is gone."
        yield Finding(14, False, text, hint)
    if autoincrement == 0:
        text = "innodb_autoinc_lock_mode is 0: a publish that waits for a row holds up every other publisher"
        yield Finding(15, False, text, "Set it to 2, the default of MySQL 8 (1 in MariaDB is as good).")


def _postgresql(alias: str) -> Iterator[Finding]:
    connection = connections[alias]
    yield from _too_old("PostgreSQL", (connection.pg_version // 10_000,), POSTGRESQL_LEAST)  # type: ignore[attr-defined]
    with connection.cursor() as cursor:
        cursor.execute("SELECT CURRENT_SETTING('default_transaction_isolation')")
        (default,) = cursor.fetchone()
        # The sequence of the log's offsets, if there is a log yet.
        cursor.execute(
            "SELECT seqcache FROM pg_sequence JOIN pg_depend ON objid = seqrelid AND deptype IN ('a', 'i')"
            " WHERE refobjid = TO_REGCLASS('sqlqueue_message')"
        )
        caches = [cache for (cache,) in cursor.fetchall()]
    levels = {default}  # of single statements, and of transactions unless an option says otherwise
    if connection.settings_dict["OPTIONS"].get("isolation_level") is not None:
        levels.add(connection.isolation_level.name.lower().replace("_", " "))  # type: ignore[attr-defined]
    for level in sorted(levels):
        if level.upper().replace(" ", "-") not in ISOLATION_LEVELS:
            text = f"the isolation level is {level}; the horizon was proven at {' and '.join(ISOLATION_LEVELS)}"
            yield Finding(3, True, text, "Leave OPTIONS['isolation_level'] out: READ COMMITTED is the default.")
        elif level != "read committed":
            text = "at REPEATABLE READ PostgreSQL rolls back atomic handlers whose group has gone on meanwhile"
            yield Finding(9, False, text, "Leave OPTIONS['isolation_level'] out: READ COMMITTED is the default.")
    if caches and caches != [1]:
        text = f"the sequence of the offsets has CACHE {caches[0]}: each connection hands out offsets of its own"
        hint = 'ALTER TABLE sqlqueue_message ALTER COLUMN "offset" SET CACHE 1, while nobody publishes.'
        yield Finding(5, True, text, hint)


def _sqlite(alias: str) -> Iterator[Finding]:
    connection = connections[alias]
    yield from _too_old("SQLite", connection.Database.sqlite_version_info, SQLITE_LEAST)  # type: ignore[attr-defined]
    if str(connection.settings_dict["OPTIONS"].get("transaction_mode", "")).upper() not in ("IMMEDIATE", "EXCLUSIVE"):
        text = "SQLite transactions are not IMMEDIATE: two that read and then write make each other fail"
        yield Finding(6, False, text, "Set OPTIONS['transaction_mode'] = 'IMMEDIATE' (and a timeout of some seconds).")
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA journal_mode")
        (journal,) = cursor.fetchone()
    if journal.lower() not in ("wal", "memory"):
        text = f"SQLite's journal mode is {journal}: every reader waits for every writer"
        yield Finding(7, False, text, "Set OPTIONS['init_command'] = 'PRAGMA journal_mode = WAL'.")


def describe(alias: str) -> str:
    """Return the server's name and version, for people; nothing secret."""
    connection = connections[alias]
    if connection.vendor == "mysql":
        name = "MariaDB" if connection.mysql_is_mariadb else "MySQL"  # type: ignore[attr-defined]
        return f"{name} {'.'.join(map(str, connection.mysql_version))}"  # type: ignore[attr-defined]
    if connection.vendor == "sqlite":
        return f"SQLite {connection.Database.sqlite_version}"  # type: ignore[attr-defined]
    return f"{connection.display_name} {'.'.join(map(str, connection.get_database_version()))}"
