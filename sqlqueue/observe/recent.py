"""The survey's figures as they were a moment ago: asked of the database once in an interval, however many want them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from django.core.signals import setting_changed
from django.db import Error

from sqlqueue.conf import settings
from sqlqueue.core.lines import line
from sqlqueue.database import faults
from sqlqueue.exceptions import Unreachable
from sqlqueue.observe.survey import Survey, survey

T = TypeVar("T")
AWAY = "the queue's database does not answer"
PATIENCE = 10.0  # seconds to wait for somebody else who is asking the database
logger = logging.getLogger("sqlqueue")


class Recent(Generic[T]):
    """One figure of one database. Failures are remembered as long as figures are: asking a database that is away over
    and over costs nothing either."""

    def __init__(self, take: Callable[[str], T]):
        self._take = take
        self._lock = threading.Lock()
        self._known: tuple[str, float, T | None] | None = None

    def get(self) -> T:
        """Return the figure, at most SURVEY_INTERVAL old. Whoever comes while it is being taken waits for that.

        Raises Unreachable if the database does not answer.
        """
        if not self._lock.acquire(timeout=PATIENCE):
            raise Unreachable(AWAY)
        try:
            figure = self._refreshed(settings.DATABASE)
        finally:
            self._lock.release()
        if figure is None:
            raise Unreachable(AWAY)
        return figure

    def _refreshed(self, alias: str) -> T | None:
        known = self._known
        if known is None or known[0] != alias or time.monotonic() - known[1] >= settings.SURVEY_INTERVAL:
            figure: T | None = None
            try:
                figure = self._take(alias)
            except Error as error:
                logger.warning(line("survey_failed", error=error))
                if faults.classify(error) is faults.Fault.GONE:
                    faults.drop_connection(alias)
            known = self._known = (alias, time.monotonic(), figure)
        return known[2]

    def forget(self) -> None:
        """Ask the database at the next use."""
        self._known = None


recent_survey: Recent[Survey] = Recent(survey)


def _changed(*, setting: str, **_: object) -> None:
    if setting == "SQLQUEUE":
        recent_survey.forget()


setting_changed.connect(_changed, dispatch_uid="sqlqueue.recent")
