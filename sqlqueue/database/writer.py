"""The writer: in a cluster of several writable servers, the one whose locks the horizon asks for.

Row locks are a server's own there. So the gate names one: messages enter the log, and the horizon is known, on that one
alone; what is published elsewhere is forwarded to it (database.forwarding). Consumer processes that are connected to it
renew its name. When that has not happened for a while, a process on another server lets that one take its place:

1. It names it in one transaction, not open yet. Of two that do so at a time the cluster fails one (certification), and
   so it fails what publishers on the former server have not sent to be committed yet.
2. What they have sent may still be committed on all servers after that. A statement that the cluster carries out on all
   servers at the same place of its order is a barrier: a message whose server has not carried it out before is refused
   (certification), all others are here when it has been carried out. ANALYZE TABLE is such a statement, needs no
   privilege beyond those on the tables, and takes milliseconds.
3. It opens the log there.

So all that was committed on the former server is here before the first probe, and nothing that it still commits can
enter the log. tests/protocol/writable_nodes.py is the model of it. Galera only: multi-primary Group Replication has no
such barrier.
"""

from __future__ import annotations

from typing import NamedTuple

from django.db import Error

from sqlqueue.database import retries
from sqlqueue.database.error_codes import ErrorKind, classify
from sqlqueue.database.insert_sql import HERE, NAMED, STANDING
from sqlqueue.database.log import Log
from sqlqueue.exceptions import ConfigurationError

CLOSED = "-"  # before the name of a server on which the log is not open yet
# Index of all: the primary key.
RENEW = f"UPDATE sqlqueue_publish_gate SET value = value + 1 WHERE slot = {NAMED} AND writer = {HERE}"
TAKE = f"""
    UPDATE sqlqueue_publish_gate SET writer = CONCAT('{CLOSED}', {HERE}), value = value + 1
    WHERE slot = {NAMED} AND writer = %s AND value = %s
"""
CLOSE = f"UPDATE sqlqueue_publish_gate SET writer = CONCAT('{CLOSED}', {HERE}) WHERE slot >= 0"
OPEN = f"UPDATE sqlqueue_publish_gate SET writer = {HERE} WHERE {{slots}} AND writer = CONCAT('{CLOSED}', {HERE})"
SLOTS = ("slot >= 0", f"slot = {NAMED}")
# Tables of which an owner on the former server may still want to commit something.
BARRIER = "ANALYZE TABLE sqlqueue_message, sqlqueue_offset, sqlqueue_delivery_state"
METHOD = "SET SESSION wsrep_osu_method = 'TOI'"

GALERA, MULTI_PRIMARY = "Galera", "multi-primary Group Replication"
IDENTITY_LENGTH = 100
VARIABLES = """
    SHOW GLOBAL VARIABLES WHERE Variable_name IN
    ('hostname', 'port', 'server_uuid', 'server_uid', 'wsrep_on', 'wsrep_provider',
    'group_replication_group_name', 'group_replication_single_primary_mode')
"""
GROUP_MEMBERS = "SELECT COUNT(*) FROM performance_schema.replication_group_members WHERE member_state = 'ONLINE'"
# A copy of a cluster has its identifier too; two servers on one host have different ports.
POSTGRESQL = "SELECT system_identifier, CURRENT_SETTING('port') FROM pg_control_system()"


class WriterState(NamedTuple):
    """Which server the gate names.

    writer: its name, "" for none, with CLOSED before it until the log is open there
    renewals: how often its name was renewed
    here: the name of this server
    """

    writer: str
    renewals: int
    here: str

    @property
    def server(self) -> str:
        """The server that the gate names."""
        return self.writer.removeprefix(CLOSED)

    @property
    def closed(self) -> bool:
        """Whether the log is not open there yet."""
        return self.writer.startswith(CLOSED)


def identity(log: Log) -> str:
    """Return what tells the server that this connection talks to from every other one; "" on SQLite."""
    if log.connection.vendor == "mysql":
        seen = _variables(log)
        unique = seen.get("server_uuid") or seen.get("server_uid") or ""
        return f"{seen.get('hostname', '')[:50]}:{seen.get('port', '')} {unique}".strip()[:IDENTITY_LENGTH]
    if log.connection.vendor == "postgresql":
        return ":".join(map(str, log.execute(POSTGRESQL).fetchone()))
    return ""


def cluster_kind(log: Log) -> str:
    """Return of what kind the cluster of writable servers is that this one belongs to; "" if it belongs to none."""
    if log.connection.vendor != "mysql":
        return ""
    seen = _variables(log)
    if seen.get("wsrep_on") == "ON" and seen.get("wsrep_provider", "none") not in ("", "none"):
        return GALERA
    grouped = seen.get("group_replication_group_name") and seen.get("group_replication_single_primary_mode") == "OFF"
    return MULTI_PRIMARY if grouped and _has_members(log) else ""


def _variables(log: Log) -> dict[str, str]:
    return {str(name).lower(): str(value) for name, value in log.execute(VARIABLES).fetchall()}


def _has_members(log: Log) -> bool:
    """Tell whether Group Replication runs here; False where that may not be read."""
    try:
        return bool(log.execute(GROUP_MEMBERS).fetchone()[0])
    except Error as error:
        if classify(error) in (ErrorKind.GONE, ErrorKind.CONTENTION):
            raise
        return False


def needs_writer(log: Log) -> bool:
    """Tell whether the gate is to name a server here, or has named one."""
    return log.connection.vendor == "mysql" and (cluster_kind(log) == GALERA or bool(writer_state(log).writer))


def writer_state(log: Log) -> WriterState:
    """Return which server the gate names."""
    return WriterState(*(log.execute(STANDING).fetchone() or ("", 0, "")))


def refuse_elsewhere(log: Log) -> None:
    """Raise LogElsewhere where the gate names another server: what changes the gate has to see who holds it."""
    if log.connection.vendor != "mysql":
        return
    found = writer_state(log)
    if found.writer not in ("", found.here):
        raise LogElsewhere(
            f"messages enter the log on the server {found.server!r} of this cluster, and this is {found.here!r}: run it"
            " where consumers run"
        )


def renew(log: Log) -> bool:
    """Say that the named server has processes; False if that is another one."""
    return bool(retries.run_statement(log, lambda: log.execute(RENEW).rowcount))


def take_over(log: Log, seen: WriterState) -> bool:
    """Let this server be the named one, unless another process has changed or renewed what was seen; the log is to be
    opened then. Waits for transactions on this server that have tried to publish."""
    return retries.run_once(log, _take_over, log, seen)


def _take_over(log: Log, seen: WriterState) -> bool:
    if not log.execute(TAKE, (seen.writer, seen.renewals)).rowcount:
        return False
    log.execute(CLOSE)
    return True


def open_log(log: Log) -> bool:
    """Open the log on this server, if it is named; False if it no longer is. Raises BarrierRefused if the barrier is
    refused. From then on publishers on it need no forwarding."""
    if cluster_kind(log) == GALERA:
        log.execute(METHOD)
    for _, _, kind, text in log.execute(BARRIER).fetchall():
        if kind == "Error":
            raise BarrierRefused(f"ANALYZE TABLE: {text}")
    return retries.run_once(log, _open, log)


def _open(log: Log) -> bool:
    changed = [log.execute(OPEN.replace("{slots}", slots)).rowcount for slots in SLOTS]
    return all(changed)


class LogElsewhere(ConfigurationError):
    """Messages enter the log on another server of the cluster than this one."""


class BarrierRefused(Error):
    """The server has not carried out the barrier."""
