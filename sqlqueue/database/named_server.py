"""The named server: in a cluster of several writable servers, the one whose locks the horizon asks for.

Row locks are a server's own there. So the gate names one: messages enter the log, and the horizon is known, on that one
alone; what is published elsewhere takes the detour (database.detour). Consumer processes that are connected to it renew
its name. When that has not happened for a while, a process on another server lets that one take its place:

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
from sqlqueue.database.cluster import is_galera
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
CLOSE = f"""
    UPDATE sqlqueue_publish_gate SET writer = CONCAT('{CLOSED}', {HERE}),
    generation = CASE WHEN generation < 0 THEN generation ELSE -1 - generation END WHERE slot >= 0
"""
OPEN = f"UPDATE sqlqueue_publish_gate SET writer = {HERE} WHERE {{slots}} AND writer = CONCAT('{CLOSED}', {HERE})"
SLOTS = ("slot >= 0", f"slot = {NAMED}")
# Tables of which an owner on the former server may still want to commit something.
BARRIER = "ANALYZE TABLE sqlqueue_message, sqlqueue_offset, sqlqueue_delivery_state"
METHOD = "SET SESSION wsrep_osu_method = 'TOI'"


class Standing(NamedTuple):
    """writer: the named server, "" for none, with CLOSED before it until the log is open there; renewals: how often it
    was renewed; here: this server."""

    writer: str
    renewals: int
    here: str

    @property
    def server(self) -> str:
        """The named server."""
        return self.writer.removeprefix(CLOSED)

    @property
    def closed(self) -> bool:
        """Whether the log is not open there yet."""
        return self.writer.startswith(CLOSED)


def concerns(log: Log) -> bool:
    """Tell whether a server is to be named here, or has been."""
    if log.connection.vendor != "mysql":
        return False
    return is_galera(log) or bool(standing(log).writer)


def standing(log: Log) -> Standing:
    """Return which server is named."""
    return Standing(*(log.execute(STANDING).fetchone() or ("", 0, "")))


def refuse_elsewhere(log: Log) -> None:
    """Raise LogElsewhere where the gate names another server: what changes the gate has to see who holds it."""
    if log.connection.vendor != "mysql":
        return
    found = standing(log)
    if found.writer not in ("", found.here):
        raise LogElsewhere(
            f"messages enter the log on the server {found.server!r} of this cluster, and this is {found.here!r}: run it"
            " where consumers run"
        )


def renew(log: Log) -> bool:
    """Say that the named server has processes; False if that is another one."""
    return bool(retries.run_statement(log, lambda: log.execute(RENEW).rowcount))


def take_over(log: Log, seen: Standing) -> bool:
    """Let this server be the named one, unless another process has changed or renewed what was seen; the log is to be
    opened then. Waits for transactions on this server that have tried to publish."""
    return retries.run_once(log, _take_over, log, seen)


def _take_over(log: Log, seen: Standing) -> bool:
    if not log.execute(TAKE, (seen.writer, seen.renewals)).rowcount:
        return False
    log.execute(CLOSE)
    return True


def open_log(log: Log) -> bool:
    """Open the log on this server, if it is named; False if it no longer is. Raises BarrierRefused if the barrier is
    refused. From then on publishers on it need no detour."""
    if is_galera(log):
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
