"""The batch task: ends batches whose last member was settled."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from sqlqueue.consumers.background.task import BackgroundTask
from sqlqueue.log.batch_ends import check, sweep

INTERVAL = 2.0  # seconds between two sweeps


class BatchTask(BackgroundTask):
    """Checks the batches of which this process has settled members, right after that, and sweeps over all: for
    deadlines, and for what another process was about to check when it was killed."""

    name = "batches"

    def __init__(self, alias: str):
        super().__init__(alias, INTERVAL)
        self._lock = threading.Lock()
        self._wanted: set[str] = set()
        self._busy = False
        self._beyond = ""  # where the sweep goes on

    def look_at(self, batches: Iterable[str]) -> None:
        """Check these batches now. From any thread."""
        with self._lock:
            self._wanted.update(batches)
        self.wake()

    @property
    def idle(self) -> bool:
        """Whether everything that was to be checked is."""
        with self._lock:
            return not (self._wanted or self._busy)

    def run_once(self) -> bool:
        """Check what was asked for, or else sweep over some; return whether there is more."""
        if self._check_wanted():
            return True
        self._beyond = sweep(self.alias, self._beyond)
        return bool(self._beyond)

    def finish(self) -> None:
        """Check what was settled last."""
        self._check_wanted()

    def _check_wanted(self) -> bool:
        with self._lock:
            wanted, self._wanted = self._wanted, set()
            self._busy = bool(wanted)
        try:
            check(self.alias, wanted)
        except BaseException:
            with self._lock:
                self._wanted |= wanted
            raise
        finally:
            self._busy = False
        return bool(wanted)
