"""The horizon: the offset at or below which no uncommitted message can still appear.

A publisher locks a slot of the gate in share mode before its insert takes an offset, and holds it until it commits. So:
take a candidate h that is at most the highest offset handed out (any visible offset is); then see each slot free at
least once, with an exclusive lock that does not wait. Whoever took an offset at or below h had locked its slot before h
was read; if the slot was free after that, its transaction has ended. h is read before the first probe, in a fresh
snapshot; what is fetched afterwards is fetched in a newer one.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from django.db import connections

from sqlqueue.database.dialects import dialect, execute
from sqlqueue.database.gate import SLOTS
from sqlqueue.database.transactions import in_test_case
from sqlqueue.exceptions import ConfigurationError, HorizonUnknown

HIGHEST = 'SELECT MAX("offset") FROM sqlqueue_message'  # index: the primary key's end
PROBE = "SELECT slot FROM sqlqueue_publish_gate WHERE slot >= 0{skip}"  # index: the primary key
PROBE_SOME = "SELECT slot FROM sqlqueue_publish_gate WHERE slot IN ({slots}){skip}"  # index: the primary key
PROBE_ADVISORY = """
    SELECT slot FROM sqlqueue_publish_gate WHERE slot >= 0
    AND PG_TRY_ADVISORY_XACT_LOCK(1936093029, slot)
"""


def highest_offset(alias: str) -> int:
    """Return the highest visible offset, 0 if there is none. Index: the primary key's end."""
    return execute(alias, HIGHEST).fetchone()[0] or 0


class Horizon:
    """One process's knowledge of the horizon of one database. Not for two threads at once."""

    def __init__(self, alias: str):
        self.alias = alias
        self.value = 0
        self._dialect = dialect(alias)
        self._candidate = 0
        self._unseen: set[int] = set()

    def probe(self, highest: int) -> int:
        """Look once; return the horizon, which may have risen. `highest`: a visible offset that was read before this
        call."""
        if not self._dialect.gated:
            self.value = max(self.value, highest)
            return self.value
        if self._candidate <= self.value:
            if highest <= self.value:
                return self.value
            self._candidate, self._unseen = highest, set()
        free = self._free_slots()
        if self._unseen:
            self._unseen -= free
        else:
            self._unseen = self._all_slots() - free
        if not self._unseen:
            self.value = self._candidate
            if highest > self._candidate:
                self._candidate, self._unseen = highest, set()
        return self.value

    def _free_slots(self) -> set[int]:
        """A single autocommit statement, so that a frozen consumer can never hold up a publisher; and it never
        waits."""
        connection = connections[self.alias]
        if connection.in_atomic_block and not in_test_case(connection):
            raise ConfigurationError(
                "the horizon cannot be probed inside a transaction, whose locks would hold up every publisher until it "
                "ends: call this outside of transaction.atomic() (and of ATOMIC_REQUESTS)"
            )
        if self._unseen and len(self._unseen) <= 32 and self._dialect.vendor == "mysql":
            marks = ", ".join(["%s"] * len(self._unseen))
            cursor = execute(self.alias, PROBE_SOME.replace("{slots}", marks), sorted(self._unseen))
        else:
            cursor = execute(self.alias, PROBE_ADVISORY if self._dialect.vendor == "postgresql" else PROBE)
        return {slot for (slot,) in cursor.fetchall()}

    def _all_slots(self) -> set[int]:
        return set(range(SLOTS))

    def wait(self, give_up: Callable[[], bool] = lambda: False, pause: float = 0.01) -> int:
        """Probe until a candidate read after this call is the horizon; return it.

        Raises HorizonUnknown if `give_up` says so first.
        """
        target = highest_offset(self.alias)
        while self.probe(target) < target:
            if give_up():
                raise HorizonUnknown(f"a transaction that publishes has been open since before offset {target}")
            time.sleep(pause)
        return self.value
