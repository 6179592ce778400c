"""Which server this is, and whether others of its cluster accept writes as well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from django.db import Error

from sqlqueue.database import retries
from sqlqueue.database.log import Log

IDENTITY_LENGTH = 100
GALERA = "Galera"
VARIABLES = """
    SHOW GLOBAL VARIABLES WHERE Variable_name IN
    ('hostname', 'port', 'server_uuid', 'server_uid', 'wsrep_on', 'wsrep_provider',
    'group_replication_group_name', 'group_replication_single_primary_mode')
"""
GALERA_SIZE = "SHOW GLOBAL STATUS LIKE 'wsrep_cluster_size'"
GROUP_MEMBERS = "SELECT COUNT(*) FROM performance_schema.replication_group_members WHERE member_state = 'ONLINE'"
# A copy of a cluster has its identifier too; two servers on one host have different ports.
POSTGRESQL = "SELECT system_identifier, CURRENT_SETTING('port') FROM pg_control_system()"


class Cluster(NamedTuple):
    """Servers of which several accept writes: of what kind, and how many there are (0: it is not to be seen)."""

    kind: str
    nodes: int


def identity(log: Log) -> str:
    """Return what tells the server that this connection talks to from every other one; "" on SQLite."""
    connection = log.connection
    if connection.vendor == "mysql":
        seen = _variables(connection)
        unique = seen.get("server_uuid") or seen.get("server_uid") or ""
        return f"{seen.get('hostname', '')[:50]}:{seen.get('port', '')} {unique}".strip()[:IDENTITY_LENGTH]
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(POSTGRESQL)
            return ":".join(map(str, cursor.fetchone()))
    return ""


def cluster(log: Log) -> Cluster | None:
    """Return the cluster of writable servers that this one belongs to; None if there is none."""
    connection = log.connection
    if connection.vendor != "mysql":
        return None
    seen = _variables(connection)
    return recognize(seen, _number(connection, GALERA_SIZE), _number(connection, GROUP_MEMBERS))


def is_galera(log: Log) -> bool:
    """Tell whether this server is a node of Galera: one statement."""
    connection = log.connection
    if connection.vendor != "mysql":
        return False
    several = recognize(_variables(connection), 0, 0)
    return several is not None and several.kind == GALERA


def recognize(variables: Mapping[str, str], galera_size: int, group_members: int) -> Cluster | None:
    """Return the same, from a server's variables and its number of nodes in a cluster of either kind."""
    if variables.get("wsrep_on") == "ON" and variables.get("wsrep_provider", "none") not in ("", "none"):
        return Cluster(GALERA, galera_size)
    grouped = variables.get("group_replication_group_name")
    if grouped and group_members and variables.get("group_replication_single_primary_mode") == "OFF":
        return Cluster("multi-primary Group Replication", group_members)
    return None


def _variables(connection: Any) -> dict[str, str]:
    with connection.cursor() as cursor:
        cursor.execute(VARIABLES)
        return {str(name).lower(): str(value) for name, value in cursor.fetchall()}


def _number(connection: Any, text: str) -> int:
    """Return the last column of the first row; 0 if there is none, or it may not be read."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(text)
            row = cursor.fetchone()
    except Error as error:
        if retries.classify(error) in (retries.ErrorKind.GONE, retries.ErrorKind.CONTENTION):
            raise
        return 0
    return int(row[-1]) if row else 0
