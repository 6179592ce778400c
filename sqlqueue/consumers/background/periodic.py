"""The periodic task: publishes the ticks of periodic schedules."""

from __future__ import annotations

import time
from collections.abc import Mapping

from sqlqueue.conf import settings
from sqlqueue.consumers.background.task import BackgroundTask
from sqlqueue.core.periodic import ScheduleDefinition
from sqlqueue.database.log import Log
from sqlqueue.log.declarations import declare
from sqlqueue.log.ticks import publish_due, retry_refused, seconds_to_next

INTERVAL = 2.0  # seconds after which another process's changes are noticed
AGAIN = 0.05  # seconds until the next iteration while another process publishes what is due


class PeriodicTask(BackgroundTask):
    """Declares this process's schedules, renews them, and publishes what is due: of all processes the first one that
    comes. It wakes when the next tick is due. An idle iteration is one statement."""

    name = "periodic"

    def __init__(self, log: Log, declared: Mapping[str, ScheduleDefinition]):
        super().__init__(log, INTERVAL)
        self._declared = declared
        self._digests = {name: definition.digest for name, definition in declared.items()}
        self._declare_at = 0.0  # by the monotonic clock

    def run_once(self) -> bool:
        """Publish one batch; return whether there is more."""
        self.interval = INTERVAL  # if the database is away; schedules that are due often would try again all the time
        error = None  # for which a tick waits
        if time.monotonic() >= self._declare_at:
            ticks = publish_due(self.log, self._digests)  # what was missed, or follows the definition before this one
            if ticks.more:
                return True
            error = ticks.error
            retry_refused(self.log, self._digests)
            if declare(self.log, self._declared):
                self._declare_at = time.monotonic() + settings.HEARTBEAT_INTERVAL
        seconds = seconds_to_next(self.log)
        if seconds is not None and seconds <= 0:
            ticks = publish_due(self.log, self._digests)
            seconds = None if ticks.more else seconds_to_next(self.log)
            if ticks.more:
                return True
            error = ticks.error
        self.interval = INTERVAL if seconds is None else min(max(seconds, AGAIN), INTERVAL)
        if error is not None:
            raise error
        return False
