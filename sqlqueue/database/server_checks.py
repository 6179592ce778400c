"""Checks of the server: whether the queue's guarantees hold on it.

Positions are safe after a failover because a replica holds a prefix of the primary's changes. A primary does not see
how its replicas are set; mostly they are set as it is, and it has been one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.core.checks import CheckMessage, Error
from django.core.checks import Warning as Caution

from sqlqueue.database.limits import is_pooled, isolation_variable
from sqlqueue.database.log import Log
from sqlqueue.database.session import change_of
from sqlqueue.database.write_probe import write_refused
from sqlqueue.database.writer import GALERA, cluster_kind

LEAST = {
    "MariaDB": (10, 6),  # SKIP LOCKED
    "MySQL": (8, 0, 17),  # SKIP LOCKED, expression defaults, a binary collation that does not pad
    "PostgreSQL": (14,),
    "SQLite": (3, 35),  # RETURNING
}
ISOLATION_LEVELS = ("READ-COMMITTED", "REPEATABLE-READ")
# The cache of the sequence of the log's offsets, if there is a log yet.
CACHES = """
    SELECT seqcache FROM pg_sequence JOIN pg_depend ON objid = seqrelid AND deptype IN ('a', 'i')
    WHERE refobjid = TO_REGCLASS('sqlqueue_message')
"""
# Schemas with tables of the queue.
SCHEMAS = """
    SELECT n.nspname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relname = 'sqlqueue_message' AND c.relkind IN ('r', 'p') ORDER BY 1 LIMIT 3
"""

VARIABLES = """
    SHOW SESSION VARIABLES WHERE Variable_name IN ('log_bin', 'binlog_format', 'replica_preserve_commit_order',
    'slave_preserve_commit_order', 'replica_parallel_workers', 'slave_parallel_workers')
"""
DOMAINS = "SELECT @@SESSION.gtid_domain_id, @@GLOBAL.gtid_domain_id"
PUBLICATIONS = """
    SELECT DISTINCT pubname FROM pg_publication_tables
    WHERE schemaname = CURRENT_SCHEMA() AND tablename IN ('sqlqueue_message', 'sqlqueue_offset') ORDER BY pubname
"""


def findings(log: Log) -> Iterator[CheckMessage]:
    """Yield what is wrong with this log's server. Opens a connection."""
    vendor = log.connection.vendor
    if changed := change_of(log):
        yield changed
        return  # for what else would be asked may be changed as well
    if vendor == "mysql":
        yield from _mysql(log)
    elif vendor == "sqlite":
        yield from _sqlite(log)
    elif vendor == "postgresql":
        yield from _postgresql(log)
    else:
        text = f"sqlqueue runs on MySQL, MariaDB, PostgreSQL and SQLite, not on {vendor}"
        yield Error(text, hint="Name an alias on one of those in SQLQUEUE['DATABASE'].", id="sqlqueue.E002")
        return
    yield from replication(log)
    if (error := write_refused(log)) is not None:
        yield Error(
            f"the database cannot be written to: {error}",
            hint="Name the alias of a primary in SQLQUEUE['DATABASE'], or let this server accept writes.",
            id="sqlqueue.E016",
        )


def _too_old(name: str, version: tuple[int, ...]) -> Iterator[CheckMessage]:
    if version < LEAST[name]:
        is_, wanted = (".".join(map(str, numbers)) for numbers in (version, LEAST[name]))
        text = f"{name} {is_} is too old: sqlqueue needs {wanted} or later"
        yield Error(text, hint=f"Upgrade {name}.", id="sqlqueue.E002")


def _unproven(level: str, hint: str) -> Iterator[CheckMessage]:
    if level.upper().replace(" ", "-") not in ISOLATION_LEVELS:
        text = f"the isolation level is {level}; the horizon was proven at {' and '.join(ISOLATION_LEVELS)}"
        yield Error(text, hint=hint, id="sqlqueue.E003")


def _mysql(log: Log) -> Iterator[CheckMessage]:
    connection: Any = log.connection
    yield from _too_old("MariaDB" if connection.mysql_is_mariadb else "MySQL", connection.mysql_version)
    isolation = isolation_variable(log)
    level, mode, increment = log.execute(f"SELECT {isolation}, @@sql_mode, @@auto_increment_increment").fetchone()
    yield from _unproven(level, "Set OPTIONS['isolation_level'] = 'read committed', Django's default.")
    if "STRICT" not in mode.upper():
        yield Error(
            "the SQL mode is not strict: MySQL would cut what is too long, and accept a missing gate",
            hint="Set OPTIONS['init_command'] = \"SET sql_mode = 'STRICT_TRANS_TABLES'\".",
            id="sqlqueue.E004",
        )
    if increment != 1:
        yield Error(
            f"auto_increment_increment is {increment}: several primaries issue interleaved offsets",
            hint="sqlqueue needs one primary at a time: write to one node only, with an increment of 1.",
            id="sqlqueue.E005",
        )
    kind = cluster_kind(log)
    if kind == GALERA:
        yield Caution(
            "Galera: what is published through another node than the named one is forwarded to it",
            hint="Let one node be written to, if you can: queuedoctor says which one is named.",
            id="sqlqueue.W014",
        )
    elif kind:
        yield Error(
            f"{kind}: what is published through another node than the consumers' would be missed for "
            "good, so no consumer is started",
            hint="Let it have a single primary: SELECT group_replication_switch_to_single_primary_mode().",
            id="sqlqueue.E043",
        )


def _postgresql(log: Log) -> Iterator[CheckMessage]:
    connection: Any = log.connection
    yield from _too_old("PostgreSQL", (connection.pg_version // 10_000,))
    (default,) = log.execute("SELECT CURRENT_SETTING('default_transaction_isolation')").fetchone()
    caches = [cache for (cache,) in log.execute(CACHES).fetchall()]
    levels = {default}  # of single statements, and of transactions unless an option says otherwise
    if connection.settings_dict["OPTIONS"].get("isolation_level") is not None:
        levels.add(connection.isolation_level.name.lower().replace("_", " "))
    hint = "Leave OPTIONS['isolation_level'] out: READ COMMITTED is the default."
    for level in sorted(levels):
        yield from _unproven(level, hint)
        if level == "repeatable read":
            text = "at REPEATABLE READ PostgreSQL rolls back atomic handlers whose group has gone on meanwhile"
            yield Caution(text, hint=hint, id="sqlqueue.W009")
    if caches and caches != [1]:
        yield Error(
            f"the sequence of the offsets has CACHE {caches[0]}: each connection issues offsets of its own",
            hint='ALTER TABLE sqlqueue_message ALTER COLUMN "offset" SET CACHE 1, while no process publishes.',
            id="sqlqueue.E005",
        )
    schemas = [name for (name,) in log.execute(SCHEMAS).fetchall()]
    if len(schemas) > 1:
        yield Caution(
            f"several schemas have the queue's tables (such as {' and '.join(schemas)}): search_path chooses",
            hint="Let one schema have them, in every search_path: consumers see nothing of what is in another one's.",
            id="sqlqueue.W051",
        )
    yield from _pooler(log)


def _pooler(log: Log) -> Iterator[CheckMessage]:
    """Yield W044 for what a session would have to keep, if connections lead through a pooler such as PgBouncer. In
    transaction mode each transaction may run in another session, and a session serves one client after another; a
    client cannot see the mode."""
    config = log.connection.settings_dict
    problems = []
    if not config.get("DISABLE_SERVER_SIDE_CURSORS"):
        text = "DISABLE_SERVER_SIDE_CURSORS is off: QuerySet.iterator() outside a transaction finds its cursor no more"
        problems.append((text, f"Set DATABASES[{log.alias!r}]['DISABLE_SERVER_SIDE_CURSORS'] = True"))
    threshold, role = (config["OPTIONS"].get(name) for name in ("prepare_threshold", "assume_role"))
    if threshold is not None:
        text = f"OPTIONS['prepare_threshold'] is {threshold}: another session lacks what is prepared"
        problems.append((text, "Leave it out, or set max_prepared_statements in PgBouncer 1.21 or later"))
    if role:
        text = f"OPTIONS['assume_role'] is {role!r}: other clients of a session have this role, too"
        problems.append((text, "Leave it out, and connect as that role"))
    if problems and is_pooled(log):
        for text, hint in problems:
            yield Caution(
                f"connections lead through a pooler, and {text}",
                hint=f"{hint}. With pool_mode = session, silence this.",
                id="sqlqueue.W044",
            )


def _sqlite(log: Log) -> Iterator[CheckMessage]:
    connection: Any = log.connection
    yield from _too_old("SQLite", connection.Database.sqlite_version_info)
    (journal,) = log.execute("PRAGMA journal_mode").fetchone()
    if journal.lower() not in ("wal", "memory"):
        yield Caution(
            f"SQLite's journal mode is {journal}: every reader waits for every writer",
            hint="Set OPTIONS['init_command'] = 'PRAGMA journal_mode = WAL'.",
            id="sqlqueue.W007",
        )


def replication(log: Log) -> Iterator[CheckMessage]:
    """Yield what is wrong with this server's replication, as far as it shows here."""
    connection: Any = log.connection
    if connection.vendor == "mysql":
        seen = {str(name).lower(): str(value) for name, value in log.execute(VARIABLES).fetchall()}
        yield from of_mysql(seen, log.execute(DOMAINS).fetchone() if connection.mysql_is_mariadb else ())
    elif connection.vendor == "postgresql" and (names := [name for (name,) in log.execute(PUBLICATIONS).fetchall()]):
        yield Caution(
            f"the log is replicated logically ({', '.join(names)}): a subscriber lacks its sequence",
            hint="Promote physical standbys only; on a logical subscriber, offsets would be given a second "
            "time (`migrate sqlqueue` raises the sequence there).",
            id="sqlqueue.W019",
        )


def of_mysql(variables: Mapping[str, str], domains: tuple[int, ...] = ()) -> Iterator[CheckMessage]:
    """Yield the same from a MySQL or MariaDB server's variables. domains: MariaDB's GTID domain of this session, and of
    the server."""
    if variables.get("log_bin") == "ON" and variables.get("binlog_format") == "STATEMENT":
        text = "binlog_format is STATEMENT: what is changed under the server's identity is not changed on replicas"
        yield Error(text, hint="Set binlog_format to ROW (or MIXED).", id="sqlqueue.E018")
    ordered = variables.get("replica_preserve_commit_order") or variables.get("slave_preserve_commit_order")
    workers = variables.get("replica_parallel_workers") or variables.get("slave_parallel_workers") or "0"
    if ordered == "OFF" and int(workers) > 1:
        yield Caution(
            f"replica_preserve_commit_order is OFF, with {workers} workers: a replica may have committed a position "
            "without the messages that it passed",
            hint="Set it to ON, on the replicas as well: a primary does not see how they are set.",
            id="sqlqueue.W017",
        )
    if len(set(domains)) > 1:
        yield Caution(
            f"the session's gtid_domain_id is {domains[0]}, the server's is {domains[1]}: parallel replicas commit "
            "domains out of order",
            hint="Let all sessions that use the queue have the server's gtid_domain_id.",
            id="sqlqueue.W017",
        )


def describe(log: Log) -> str:
    """Return the server's name and version, for people; nothing secret."""
    connection: Any = log.connection
    if connection.vendor == "mysql":
        name = "MariaDB" if connection.mysql_is_mariadb else "MySQL"
        return f"{name} {'.'.join(map(str, connection.mysql_version))}"
    if connection.vendor == "sqlite":
        return f"SQLite {connection.Database.sqlite_version}"
    return f"{connection.display_name} {'.'.join(map(str, connection.get_database_version()))}"
