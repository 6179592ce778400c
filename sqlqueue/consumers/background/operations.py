"""Background tasks that call one operation each."""

from __future__ import annotations

from sqlqueue.consumers.background.task import BackgroundTask
from sqlqueue.database.log import Log
from sqlqueue.log.schedule import move_due
from sqlqueue.log.topic_options import apply_settings
from sqlqueue.operations.requests import INTERVAL, carry_out

APPLY_INTERVAL = 1.0  # seconds


class SchedulerTask(BackgroundTask):
    """Moves messages that are due from the schedule into the log, also those that plain SQL has inserted."""

    name = "scheduler"

    def run_once(self) -> bool:
        """Move one batch; return whether there may be more."""
        return move_due(self.log) > 0


class RequestTask(BackgroundTask):
    """Carries out operators' requests: it replays dead letters, and reschedules deliveries."""

    name = "requests"

    def __init__(self, log: Log):
        super().__init__(log, INTERVAL)

    def run_once(self) -> bool:
        """Carry out one step of each request; return whether there is more to do."""
        return carry_out(self.log)


class SettingsTask(BackgroundTask):
    """Applies the settings to topics that were locked when `runconsumers` started; ends when all topics have them."""

    name = "settings"

    def __init__(self, log: Log):
        super().__init__(log, APPLY_INTERVAL)

    def run_once(self) -> bool:
        """Apply the settings to the topics that are left."""
        self._stopping = not apply_settings(self.log) or self._stopping
        return False
