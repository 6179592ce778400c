"""The horizon: the offset at or below which no uncommitted message can still appear.

A publisher locks the gate in share mode before its insert takes an offset, and holds it until it commits. So: take a
candidate h that is at most the highest offset assigned (any visible offset is); then wait until every transaction that
held the gate has released it. A transaction that took an offset at or below h had locked the gate before h was read;
once it no longer holds it, it has ended. h is read before the first probe, in a fresh snapshot; what is fetched
afterwards is fetched in a newer one.

On MySQL the gate is many slots, and each must be seen free once, with an exclusive lock that does not wait, since an
unprivileged user cannot see there which transaction holds a row's lock. On PostgreSQL it can, so the gate is one lock:
the transactions that hold it at the first probe are the ones to wait for, each once, and a probe blocks no publisher.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from django.db import connections

from sqlqueue.database.insert_sql import ADVISORY, SLOTS
from sqlqueue.database.statements import dialect, execute
from sqlqueue.database.transactions import refusal
from sqlqueue.exceptions import ConfigurationError, HorizonUnknown

HIGHEST = 'SELECT MAX("offset") FROM sqlqueue_message'  # index: the primary key's end
PROBE = "SELECT slot FROM sqlqueue_publish_gate WHERE slot >= 0{skip}"  # index: the primary key
PROBE_SOME = "SELECT slot FROM sqlqueue_publish_gate WHERE slot IN ({slots}){skip}"  # index: the primary key
HOLDERS = f"""
    SELECT virtualtransaction FROM pg_locks WHERE locktype = 'advisory' AND classid = {ADVISORY} AND objid = 0
    AND objsubid = 2 AND granted AND pid IS DISTINCT FROM PG_BACKEND_PID()
    AND database = (SELECT oid FROM pg_database WHERE datname = CURRENT_DATABASE())
"""
PREPARED = "-1/"  # a holder that was prepared for a two-phase commit has another name from then on


def highest_offset(alias: str) -> int:
    """Return the highest visible offset, 0 if there is none. Index: the primary key's end."""
    return execute(alias, HIGHEST).fetchone()[0] or 0


class Horizon:
    """The horizon of one database, as one process knows it. Not thread-safe."""

    def __init__(self, alias: str):
        self.alias = alias
        self.value = 0
        self._dialect = dialect(alias)
        self._candidate = 0
        self._holders: set[Any] = set()  # the slots or transactions for which the candidate waits

    def probe(self, highest: int) -> int:
        """Probe once, without waiting; return the horizon. highest: a visible offset that was read before this call."""
        if not self._dialect.gated:
            self.value = max(self.value, highest)
            return self.value
        if self._candidate <= self.value:
            if highest <= self.value:
                return self.value
            self._candidate = highest
        self._holders = self._still_held()
        if not self._holders:
            self.value = self._candidate
            self._candidate = max(self._candidate, highest)
        return self.value

    def _still_held(self) -> set[Any]:
        """Return which of the known holders still hold the gate; all present holders if none is known.

        A single autocommit statement that never waits, so that a frozen consumer cannot block a publisher.
        """
        if why := refusal(connections[self.alias]):
            raise ConfigurationError(f"the horizon cannot be probed {why}")
        return self._held_slots() if self._dialect.vendor == "mysql" else self._publishing_transactions()

    def _held_slots(self) -> set[Any]:
        wanted = sorted(self._holders)
        if wanted and len(wanted) <= 32:
            marks = ", ".join(["%s"] * len(wanted))
            cursor = execute(self.alias, PROBE_SOME.replace("{slots}", marks), wanted)
        else:
            cursor = execute(self.alias, PROBE)
        return set(wanted or range(SLOTS)) - {slot for (slot,) in cursor.fetchall()}

    def _publishing_transactions(self) -> set[Any]:
        holders = {holder for (holder,) in execute(self.alias, HOLDERS).fetchall()}
        if not self._holders:
            return holders
        return {holder for holder in holders if holder in self._holders or holder.startswith(PREPARED)}

    def wait(self, give_up: Callable[[], bool] = lambda: False, pause: float = 0.01) -> int:
        """Probe until a candidate read after this call is the horizon; return it.

        Raises HorizonUnknown if `give_up` says so first.
        """
        target = highest_offset(self.alias)
        while self.probe(target) < target:
            if give_up():
                raise HorizonUnknown(
                    f"a transaction that publishes has been open since before offset {target}: nothing was changed; "
                    "try again when it has ended"
                )
            time.sleep(pause)
        return self.value
