"""The stats recorder: adds what this process has settled to the minutes' activity, and once a minute the backlog of
every group."""

from __future__ import annotations

from sqlqueue.consumers.background.outcome_counter import OutcomeCounter
from sqlqueue.consumers.background.task import BackgroundTask
from sqlqueue.database.log import Log
from sqlqueue.log import duties
from sqlqueue.stats.survey import survey
from sqlqueue.stats.throughput import add, forget, has_backlogs, record_backlogs

INTERVAL = 10.0  # seconds
FORGET_EVERY = 100  # iterations
SURVEY_LASTS = 20.0  # seconds after which another process makes the survey of this minute


class StatsRecorder(BackgroundTask):
    """Records activity. Counts that could not be written are lost: nothing is decided by them."""

    name = "stats-recorder"

    def __init__(self, log: Log, outcome_counter: OutcomeCounter):
        super().__init__(log, INTERVAL)
        self.outcome_counter = outcome_counter
        self._iterations = 0

    def run_once(self) -> bool:
        """Add the counts, record the backlogs if no process has in this minute, and now and then delete old minutes."""
        self.finish()
        if not has_backlogs(self.log) and duties.begin(self.log, duties.SURVEY, SURVEY_LASTS):
            record_backlogs(self.log, survey(self.log))
        if self._iterations % FORGET_EVERY == 0:
            forget(self.log)
        self._iterations += 1
        return False

    def finish(self) -> None:
        """Add the counts to the current minute."""
        if figures := self.outcome_counter.take():
            add(self.log, figures)
