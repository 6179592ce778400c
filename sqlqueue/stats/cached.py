"""Caches what was read of the queue for STATS_INTERVAL, so that any number of requests costs one read."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from django.core.signals import setting_changed
from django.db import Error

from sqlqueue.conf import settings
from sqlqueue.core.logfmt import logfmt
from sqlqueue.database import retries
from sqlqueue.database.log import Log, home_log
from sqlqueue.exceptions import Unreachable
from sqlqueue.stats.survey import Survey, survey

T = TypeVar("T")
UNREACHABLE = "the queue's database does not answer"
WAIT_TIMEOUT = 10.0  # seconds to wait for another thread that is reading
logger = logging.getLogger("sqlqueue")


class Cached(Generic[T]):
    """One value that is read from the queue's database, of each database. A failure is cached as long as a value, so
    that an unreachable database is not asked with every request."""

    def __init__(self, read_value: Callable[[Log], T]):
        self._read_value = read_value
        self._locks: dict[Log, threading.Lock] = {}  # so that one that hangs holds up no other
        self._cached: dict[Log, tuple[float, T | None]] = {}
        setting_changed.connect(self._changed)

    def get(self, log: Log | None = None) -> T:
        """Return the value of a log (that of DATABASE), at most STATS_INTERVAL old. A thread that asks
        during a read waits for its result.

        Raises Unreachable if the database does not answer.
        """
        log = log or home_log()
        lock = self._locks.setdefault(log, threading.Lock())
        if not lock.acquire(timeout=WAIT_TIMEOUT):
            raise Unreachable(UNREACHABLE)
        try:
            value = self._refreshed(log)
        finally:
            lock.release()
        if value is None:
            raise Unreachable(UNREACHABLE)
        return value

    def _refreshed(self, log: Log) -> T | None:
        cached = self._cached.get(log)
        if cached is None or time.monotonic() - cached[0] >= settings.STATS_INTERVAL:
            value: T | None = None
            try:
                value = self._read_value(log)
            except Error as error:
                logger.warning(logfmt("stats_failed", error=error))
                if retries.classify(error) is retries.ErrorKind.GONE:
                    retries.drop_connection(log)
            cached = self._cached[log] = (time.monotonic(), value)
        return cached[1]

    def forget(self) -> None:
        """Drop the values: the next get() reads the database."""
        self._cached.clear()

    def _changed(self, *, setting: str, **_: object) -> None:
        if setting == "SQLQUEUE":
            self.forget()


recent_survey: Cached[Survey] = Cached(survey)
