"""Checks of the server: whether the queue's guarantees hold on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import Error

from sqlqueue.database import pooler, replication_checks
from sqlqueue.database.alias_checks import journal_problem, not_immediate, of_change
from sqlqueue.database.cluster import GALERA, cluster
from sqlqueue.database.error_codes import ErrorKind, classify
from sqlqueue.database.log import Log
from sqlqueue.database.replication_checks import ServerProblem
from sqlqueue.database.session_guard import change_of

MARIADB_LEAST = (10, 6)  # SKIP LOCKED
MYSQL_LEAST = (8, 0, 17)  # SKIP LOCKED, expression defaults, a binary collation that does not pad
POSTGRESQL_LEAST = (14,)
SQLITE_LEAST = (3, 35)  # RETURNING
NO_LIMIT = 2**64 - 1  # of MySQL's sql_select_limit
ISOLATION_LEVELS = ("READ-COMMITTED", "REPEATABLE-READ")
# Changes nothing, and is refused where nothing may be changed.
WRITE = "UPDATE sqlqueue_publish_gate SET slot = slot WHERE slot IS NULL"


def findings(log: Log) -> Iterator[ServerProblem]:
    """Yield the problems of this server. Opens a connection."""
    vendor = log.connection.vendor
    if changed := change_of(log):
        yield of_change(log.alias, changed)
        return  # for what else would be asked may be changed as well
    if vendor == "mysql":
        yield from _mysql(log)
    elif vendor == "sqlite":
        yield from _sqlite(log)
    elif vendor == "postgresql":
        yield from _postgresql(log)
    else:
        text = f"sqlqueue runs on MySQL, MariaDB, PostgreSQL and SQLite, not on {vendor}"
        yield ServerProblem(2, True, text, "Name an alias on one of those in SQLQUEUE['DATABASE'].")
        return
    yield from replication_checks.findings(log)
    yield from _read_only(log)


def write_refused(log: Log) -> Error | None:
    """Return the error with which a database refuses whatever would be written; None if it takes writes. By trial: a
    privileged user may write where others may not."""
    try:
        with _at_once(log), log.atomic(), log.connection.cursor() as cursor:
            cursor.execute(WRITE)
    except Error as error:
        if classify(error) is ErrorKind.GONE:  # else locked for a moment; or there are no tables yet, others say so
            return error
    return None


def _read_only(log: Log) -> Iterator[ServerProblem]:
    if (error := write_refused(log)) is not None:
        text = f"the database cannot be written to: {error}"
        hint = "Name the alias of a primary in SQLQUEUE['DATABASE'], or let this server accept writes."
        yield ServerProblem(16, True, text, hint)


@contextmanager
def _at_once(log: Log) -> Iterator[None]:
    """Wait for no lock on SQLite, where another process's transaction may hold the only one for long."""
    connection = log.connection
    if connection.vendor != "sqlite":
        yield
        return
    with connection.cursor() as cursor:
        timeout = cursor.execute("PRAGMA busy_timeout").fetchone()[0]
        cursor.execute("PRAGMA busy_timeout = 0")
        try:
            yield
        finally:
            cursor.execute(f"PRAGMA busy_timeout = {timeout:d}")


def _too_old(name: str, version: tuple[int, ...], least: tuple[int, ...]) -> Iterator[ServerProblem]:
    if version < least:
        is_, wanted = (".".join(map(str, numbers)) for numbers in (version, least))
        yield ServerProblem(2, True, f"{name} {is_} is too old: sqlqueue needs {wanted} or later", f"Upgrade {name}.")


def _mysql(log: Log) -> Iterator[ServerProblem]:
    connection = log.connection
    mariadb = connection.mysql_is_mariadb  # type: ignore[attr-defined]
    name, least = ("MariaDB", MARIADB_LEAST) if mariadb else ("MySQL", MYSQL_LEAST)
    yield from _too_old(name, connection.mysql_version, least)  # type: ignore[attr-defined]
    with connection.cursor() as cursor:
        isolation = "tx_isolation" if mariadb and connection.mysql_version < (11, 1) else "transaction_isolation"  # type: ignore[attr-defined]
        cursor.execute(
            f"SELECT @@{isolation}, @@sql_mode, @@auto_increment_increment, @@innodb_autoinc_lock_mode,"
            " @@sql_safe_updates, @@sql_select_limit"
        )
        level, mode, increment, autoincrement, safe_updates, select_limit = cursor.fetchone()
    if level not in ISOLATION_LEVELS:
        text = f"the isolation level is {level}; the horizon was proven at {' and '.join(ISOLATION_LEVELS)}"
        yield ServerProblem(3, True, text, "Set OPTIONS['isolation_level'] = 'read committed', Django's default.")
    if "STRICT" not in mode.upper():
        text = "the SQL mode is not strict: MySQL would cut what is too long, and accept a missing gate"
        yield ServerProblem(4, True, text, "Set OPTIONS['init_command'] = \"SET sql_mode = 'STRICT_TRANS_TABLES'\".")
    if increment != 1:
        text = f"auto_increment_increment is {increment}: several primaries issue interleaved offsets"
        yield ServerProblem(
            5, True, text, "sqlqueue needs one primary at a time: write to one node only, with an increment of 1."
        )
    if safe_updates:
        text = "sql_safe_updates is on: the server refuses updates of whole tables, which migrations have"
        yield ServerProblem(50, True, text, "Leave it out of init_command, or set it to 0 there: it is for shells.")
    if select_limit < NO_LIMIT:
        text = f"sql_select_limit is {select_limit}: the server leaves out rows of longer results"
        yield ServerProblem(50, True, text, "Leave it out of init_command, or set it to DEFAULT there.")
    several = cluster(log)
    if several is not None:
        size = f" of {several.nodes} nodes" if several.nodes else ""
        if several.kind == GALERA:
            text = f"{several.kind}{size}: what is published through others than the named one takes a detour"
            hint = "Let one node be written to, if you can: queuedoctor says which one is named."
            yield ServerProblem(14, False, text, hint)
        else:
            text = f"{several.kind}{size}: what is published through another node than the consumers' would be missed"
            text += " for good, so no consumer is started"
            hint = "Let it have a single primary: SELECT group_replication_switch_to_single_primary_mode()."
            yield ServerProblem(43, True, text, hint)
    if autoincrement == 0:
        text = "innodb_autoinc_lock_mode is 0: a publish that waits for a row holds up every other publisher"
        yield ServerProblem(15, False, text, "Set it to 2, the default of MySQL 8 (1 in MariaDB is as good).")


def _postgresql(log: Log) -> Iterator[ServerProblem]:
    connection = log.connection
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
            yield ServerProblem(3, True, text, "Leave OPTIONS['isolation_level'] out: READ COMMITTED is the default.")
        elif level != "read committed":
            text = "at REPEATABLE READ PostgreSQL rolls back atomic handlers whose group has gone on meanwhile"
            yield ServerProblem(9, False, text, "Leave OPTIONS['isolation_level'] out: READ COMMITTED is the default.")
    if caches and caches != [1]:
        text = f"the sequence of the offsets has CACHE {caches[0]}: each connection issues offsets of its own"
        hint = 'ALTER TABLE sqlqueue_message ALTER COLUMN "offset" SET CACHE 1, while no process publishes.'
        yield ServerProblem(5, True, text, hint)
    yield from _several_schemas(log)
    yield from pooler.findings(log)


# Schemas with tables of the queue.
SCHEMAS = """
    SELECT n.nspname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relname = 'sqlqueue_message' AND c.relkind IN ('r', 'p') ORDER BY 1 LIMIT 3
"""


def _several_schemas(log: Log) -> Iterator[ServerProblem]:
    schemas = [name for (name,) in log.execute(SCHEMAS).fetchall()]
    if len(schemas) > 1:
        text = f"several schemas have the queue's tables (such as {' and '.join(schemas)}): search_path chooses"
        hint = "Let one schema have them, in every search_path: consumers see nothing of what is in another one's."
        yield ServerProblem(51, False, text, hint)


def _sqlite(log: Log) -> Iterator[ServerProblem]:
    connection = log.connection
    yield from _too_old("SQLite", connection.Database.sqlite_version_info, SQLITE_LEAST)  # type: ignore[attr-defined]
    yield from not_immediate(connection.settings_dict["OPTIONS"])
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA journal_mode")
        (journal,) = cursor.fetchone()
    if journal.lower() not in ("wal", "memory"):
        yield journal_problem(journal)


def same_kind(log: Log, other: Log) -> bool:
    """Tell whether two logs are of the same kind of database, so that one can be a replica of the other."""
    return log.connection.vendor == other.connection.vendor


def describe(log: Log) -> str:
    """Return the server's name and version, for people; nothing secret."""
    connection = log.connection
    if connection.vendor == "mysql":
        name = "MariaDB" if connection.mysql_is_mariadb else "MySQL"  # type: ignore[attr-defined]
        return f"{name} {'.'.join(map(str, connection.mysql_version))}"  # type: ignore[attr-defined]
    if connection.vendor == "sqlite":
        return f"SQLite {connection.Database.sqlite_version}"  # type: ignore[attr-defined]
    return f"{connection.display_name} {'.'.join(map(str, connection.get_database_version()))}"
