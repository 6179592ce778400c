"""Residents: small background duties, each with an interval, a bound on its work, and its own error boundary."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from django.db import Error, connections

from sqlqueue.core.lines import line
from sqlqueue.core.outcomes import said_by, storable
from sqlqueue.database import faults, patience
from sqlqueue.database.horizon import Horizon, highest_offset
from sqlqueue.leases import heartbeat
from sqlqueue.log.collect import collect, report_absent
from sqlqueue.log.replay import INTERVAL as REPLAY_INTERVAL
from sqlqueue.log.replay import carry_out
from sqlqueue.log.schedule import move_due
from sqlqueue.signals import announce, verb_failed

logger = logging.getLogger("sqlqueue")


FAILING = 3  # turns in a row that failed: more than a database that is restarted


class Resident:
    """A duty that a thread of its own does every `interval` seconds, on a connection of its own."""

    name = "resident"

    def __init__(self, alias: str, interval: float):
        self.alias, self.interval = alias, interval
        self._due = threading.Event()
        self._stopping = False
        self._failures, self._error = 0, ""
        self._thread = threading.Thread(target=self._run, name=f"sqlqueue-{self.name}", daemon=True)

    def start(self) -> None:
        """Begin; the first turn is at once."""
        self._thread.start()

    def wake(self) -> None:
        """Do the next turn now."""
        self._due.set()

    def stop(self, timeout: float = 5.0) -> None:
        """End after the present turn."""
        self._stopping = True
        self._due.set()
        self._thread.join(timeout)

    def turn(self) -> bool:
        """Do the duty once; True if there is more of it to do at once."""
        raise NotImplementedError

    @property
    def failing(self) -> str:
        """What it fails of, again and again; "" for one that gets on."""
        return f"{self.name}: {self._error}" if self._failures >= FAILING else ""

    def forget(self) -> None:
        """The database was away, and may have been restarted: trust nothing that was read before."""

    def leave(self) -> None:
        """Do, at the end, what must not be left undone."""

    def _run(self) -> None:
        try:
            with patience.limited(self.alias):
                while not self._stopping:
                    more = self._guarded(self.turn)
                    if not more and not self._stopping:
                        self._due.wait(self.interval)
                    self._due.clear()
                self._guarded(self.leave)
        finally:
            connections.close_all()

    def _guarded(self, do: Callable[[], bool | None]) -> bool:
        try:
            if faults.close_lost_connections():
                self.forget()
            more = bool(do())
        except Error as error:
            fault = faults.classify(error)
            if fault is faults.Fault.GONE:
                faults.drop_connection(self.alias)
                self.forget()
            self._failed(error)
            logger.warning(line("resident_failed", resident=self.name, fault=fault.name, error=error))
            announce(verb_failed, Resident, verb=self.name, fault=fault.name, error=error)
        except Exception as error:
            self._failed(error)
            logger.error(line("resident_failed", resident=self.name, error=error), exc_info=error)
        else:
            self._failures = 0
            return more
        return False

    def _failed(self, error: Exception) -> None:
        self._error = storable(said_by(error) or type(error).__name__)
        self._failures += 1


class Scheduler(Resident):
    """Moves due messages into the log, whoever has inserted them."""

    name = "scheduler"

    def turn(self) -> bool:
        """Move one batch."""
        return move_due(self.alias) > 0


class Replayer(Resident):
    """Carries out the orders to deliver dead letters again."""

    name = "replayer"

    def __init__(self, alias: str):
        super().__init__(alias, REPLAY_INTERVAL)

    def turn(self) -> bool:
        """Do a step of each."""
        return carry_out(self.alias)


class Collector(Resident):
    """Collects, reports who is away, and forgets subscribers that died long ago."""

    name = "collector"

    def __init__(self, alias: str, interval: float, lease_duration: float):
        super().__init__(alias, interval)
        self._lease_duration = lease_duration
        self._horizon: Horizon | None = None

    def forget(self) -> None:
        """A restarted server may hand out offsets again that were below the horizon."""
        self._horizon = None

    def turn(self) -> bool:
        """Collect within its bounds."""
        if self._horizon is None:
            self._horizon = Horizon(self.alias)
        self._horizon.probe(highest_offset(self.alias))
        collected = collect(self.alias, self._horizon, stop=lambda: self._stopping)
        report_absent(self.alias)
        heartbeat.bury_dead(self.alias, self._lease_duration)
        return collected.more
