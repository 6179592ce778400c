"""Counts what a process settles, and records it with the backlog of every group."""

from __future__ import annotations

import threading

from sqlqueue.consumers.background.task import BackgroundTask
from sqlqueue.core import outcomes
from sqlqueue.core.settle_plan import SettleResult, count_kinds
from sqlqueue.database.log import Log
from sqlqueue.log import duties
from sqlqueue.stats.survey import survey
from sqlqueue.stats.throughput import SettledCounts, add, forget, has_backlogs, record_backlogs

COUNTED = {outcomes.ACKED: 0, outcomes.RETRIED: 1, outcomes.POSTPONED: 2, outcomes.DEAD: 3}


class OutcomeCounter:
    """Counts outcomes by topic and group. The control thread adds, the stats recorder takes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], list[float]] = {}  # by (topic, group)

    def add(self, result: SettleResult) -> None:
        """Count the outcomes of a settle plan that was written."""
        if not (result.settled or result.plan.filtered):
            return
        ref = result.plan.lease.ref
        kinds = count_kinds(result.settled)
        seconds = sum([took for attempt, _ in result.settled if (took := attempt.finished - attempt.started) > 0])
        with self._lock:
            counts = self._counts.setdefault((ref.topic, ref.group), [0.0] * 6)
            counts[5] += result.plan.filtered
            counts[4] += seconds
            for kind, count in kinds.items():
                counts[COUNTED[kind]] += count

    def take(self) -> list[SettledCounts]:
        """Return the counts, and reset them."""
        with self._lock:
            counts, self._counts = self._counts, {}
        return [
            SettledCounts._make((*pair, *map(int, numbers[:4]), numbers[4], int(numbers[5])))
            for pair, numbers in counts.items()
        ]


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
