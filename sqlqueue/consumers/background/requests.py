"""The request task: carries out operator requests."""

from __future__ import annotations

from sqlqueue.consumers.background.task import BackgroundTask
from sqlqueue.database.log import Log
from sqlqueue.operations.requests import INTERVAL, carry_out


class RequestTask(BackgroundTask):
    """Replays dead letters, and reschedules deliveries."""

    name = "requests"

    def __init__(self, log: Log):
        super().__init__(log, INTERVAL)

    def run_once(self) -> bool:
        """Carry out one step of each request; return whether there is more to do."""
        return carry_out(self.log)
