"""Whether a database takes writes: by a trial that writes nothing, or by a probe. Reads may go on for hours while each
commit hangs, on a full disk for example.

A probe writes a row and commits, in a thread and on a connection of its own, one at a time of each database: where a
commit hangs, one thread does.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from django.db import Error, connections

from sqlqueue.database.error_codes import ErrorKind, classify
from sqlqueue.database.log import Log

TIMEOUT = 2.0  # seconds that a probe has until it hangs
PROBE = "probe"  # the name of its row
WRITE = "INSERT INTO sqlqueue_duty (name, began_at) VALUES (%s, {now})"
NOTHING = "UPDATE sqlqueue_publish_gate SET slot = slot WHERE slot IS NULL"  # is refused where nothing may be changed
NO_RIGHTS = (1044, 1142, 1143, "42501")  # who only looks at a queue need not be able to write: that says nothing


def write_refused(log: Log) -> Error | None:
    """Return the error with which a database refuses whatever would be written; None if it takes writes. By trial: a
    privileged user may write where others may not."""
    try:
        with _at_once(log), log.atomic():
            log.execute(NOTHING)
    except Error as error:
        if classify(error) is ErrorKind.GONE:  # else locked for a moment; or there are no tables yet, others say so
            return error
    return None


@contextmanager
def _at_once(log: Log) -> Iterator[None]:
    """Wait for no lock on SQLite, where another process's transaction may hold the only one for long."""
    if log.connection.vendor != "sqlite":
        yield
        return
    (timeout,) = log.execute("PRAGMA busy_timeout").fetchone()
    log.execute("PRAGMA busy_timeout = 0")
    try:
        yield
    finally:
        log.execute(f"PRAGMA busy_timeout = {timeout:d}")


@dataclass(frozen=True, slots=True)
class Writing:
    """Whether a database takes writes. hangs_for: for how many seconds a write has hung; error: why it was refused."""

    hangs_for: float = 0.0
    error: str = ""

    @property
    def fails(self) -> bool:
        """Whether the database takes no writes."""
        return bool(self.hangs_for or self.error)


class Probe:
    """One write, which `run` tries."""

    def __init__(self, log: Log) -> None:
        self.log, self.began = log, time.monotonic()
        self.done = threading.Event()
        self._error = ""

    def run(self) -> None:
        """Write and commit."""
        try:
            _write(self.log)
        except Error as error:
            self._error = "" if _says_nothing(self.log, error) else str(error)
        finally:
            connections.close_all()
            self.done.set()

    def outcome(self) -> Writing:
        """Return what came of it; wait until TIMEOUT after it began."""
        self.done.wait(max(0.0, self.began + TIMEOUT - time.monotonic()))
        if self.done.is_set():
            return Writing(error=self._error)
        return Writing(hangs_for=time.monotonic() - self.began)


_lock = threading.Lock()
_last: dict[Log, Probe] = {}


def start(log: Log) -> Probe:
    """Start a probe of a database, unless one runs or hangs; return the one that does now."""
    with _lock:
        probe = _last.get(log)
        if probe is None or probe.done.is_set():
            probe = _last[log] = Probe(log)
            threading.Thread(target=probe.run, name="sqlqueue-write-probe", daemon=True).start()
    return probe


def _write(log: Log) -> None:
    with _at_once(log):  # a lock that another one holds is no fault
        log.execute(f"{WRITE} {log.dialect.upsert('name', {'began_at': '{new:began_at}'})}", (PROBE,))


def _says_nothing(log: Log, error: Error) -> bool:
    cause = error.__cause__
    code = getattr(cause, "sqlstate", None) or next(iter(getattr(cause, "args", ())), None)
    busy = log.connection.vendor == "sqlite" and classify(error) is ErrorKind.CONTENTION
    return busy or code in NO_RIGHTS


def _forget() -> None:
    """Forget the parent's probes: their threads do not run in a forked child."""
    global _lock
    _lock = threading.Lock()
    _last.clear()


os.register_at_fork(after_in_child=_forget)
