"""Checks of replication: whether a server that takes this one's place has what this one had, up to some moment.

Positions are safe after a failover because a replica holds a prefix of the primary's changes. A primary does not see
how its replicas are set; mostly they are set as it is, and it has been one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.core.checks import CheckMessage, Error
from django.core.checks import Warning as Caution

from sqlqueue.database.log import Log

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
