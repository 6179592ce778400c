"""The scheduler: moves messages that are due from the schedule into the log."""

from __future__ import annotations

from sqlqueue.consumers.background.task import BackgroundTask
from sqlqueue.log.schedule import move_due


class SchedulerTask(BackgroundTask):
    """Moves due messages into the log, also those that plain SQL has inserted."""

    name = "scheduler"

    def run_once(self) -> bool:
        """Move one batch; return whether there may be more."""
        return move_due(self.log) > 0
