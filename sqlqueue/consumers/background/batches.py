"""The batch task: ends batches whose last member was settled."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from sqlqueue.consumers.background.task import BackgroundTask
from sqlqueue.database.log import Log
from sqlqueue.log.batch_ends import check, sweep

INTERVAL = 2.0  # seconds between two sweeps
REST = 10  # times as long as a sweep over many batches has lasted the next one waits


class BatchTask(BackgroundTask):
    """Checks the batches of which this process has settled members, right after that, and sweeps over all: for
    deadlines, and for what another process was about to check when it was killed."""

    name = "batches"

    def __init__(self, log: Log):
        super().__init__(log, INTERVAL)
        self._lock = threading.Lock()
        self._wanted: set[str] = set()
        self._busy = False
        self._beyond = ""  # where the sweep goes on
        self._due_at = self._lasted = 0.0  # when the next sweep is due; how many seconds the one under way has taken

    def tell(self, something: bool) -> None:
        """See the base."""
        if something and self._told is False:
            self._due_at = 0.0
        super().tell(something)

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
        """Check what was asked for, and sweep over some if that is due, however much is asked for; return whether there
        is more."""
        checked = self._check_wanted()
        began = time.monotonic()
        if began < self._due_at:
            return checked
        self._beyond = sweep(self.log, self._beyond)
        ended = time.monotonic()
        self._lasted += ended - began
        if not self._beyond:
            self._due_at, self._lasted = ended + max(self.pause, REST * self._lasted), 0.0
        return checked or bool(self._beyond)

    def finish(self) -> None:
        """Check what was settled last."""
        self._check_wanted()

    def _check_wanted(self) -> bool:
        with self._lock:
            wanted, self._wanted = self._wanted, set()
            self._busy = bool(wanted)
        try:
            check(self.log, wanted)
        except BaseException:
            self._want_again(wanted)
            raise
        finally:
            self._busy = False
        return bool(wanted)

    def _want_again(self, batches: Iterable[str]) -> None:
        with self._lock:
            self._wanted.update(batches)
