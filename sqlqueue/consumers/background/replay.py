"""The replay task: carries out the operators' requests for replays and reschedulings."""

from __future__ import annotations

from sqlqueue.consumers.background.task import BackgroundTask
from sqlqueue.operations.replay_requests import carry_out
from sqlqueue.operations.requests import INTERVAL
from sqlqueue.operations.reschedule_requests import carry_out as carry_out_reschedulings


class ReplayTask(BackgroundTask):
    """Replays dead letters, and reschedules deliveries."""

    name = "replay"

    def __init__(self, alias: str):
        super().__init__(alias, INTERVAL)

    def run_once(self) -> bool:
        """Carry out one step of each kind of request; return whether there is more to do."""
        return any([carry_out(self.alias), carry_out_reschedulings(self.alias)])
