"""The outcome counter: what a process has settled since the stats recorder last took it."""

from __future__ import annotations

import threading

from sqlqueue.core import outcomes
from sqlqueue.core.settle_plan import SettleResult, count_kinds
from sqlqueue.stats.throughput import SettledCounts

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
