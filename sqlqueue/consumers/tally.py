"""What a process has settled, counted until the recorder takes it."""

from __future__ import annotations

import threading

from sqlqueue.core import outcomes
from sqlqueue.core.plan import Plan
from sqlqueue.observe.activity import Figures

COUNTED = {outcomes.ACKED: 0, outcomes.RETRIED: 1, outcomes.POSTPONED: 2, outcomes.DEAD: 3}


class Tally:
    """What was settled since somebody last took the figures. The control thread adds, the recorder takes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], list[float]] = {}

    def add(self, plan: Plan) -> None:
        """Count the outcomes of a plan that was written."""
        if not plan.settled:
            return
        address = plan.stream.address
        with self._lock:
            counts = self._counts.setdefault((address.topic, address.group), [0.0] * 5)
            for hand in plan.settled:
                if hand.outcome is not None and (place := COUNTED.get(hand.outcome.kind)) is not None:
                    counts[place] += 1
                    counts[4] += max(0.0, hand.finished - hand.started)

    def take(self) -> list[Figures]:
        """Return what was counted, and begin anew."""
        with self._lock:
            counts, self._counts = self._counts, {}
        return [Figures._make((*place, *map(int, numbers[:4]), numbers[4])) for place, numbers in counts.items()]
