"""The effect task: tells effects what was committed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from sqlqueue.consumers.background.task import BackgroundTask
from sqlqueue.core.effects import EffectWrite, by_effect, with_header
from sqlqueue.database.log import Log

INTERVAL = 2.0  # seconds between two calls without writes, while an effect waits for something
LOOK = 30.0  # seconds between two of them while none does
RESERVE = 5  # times as long a process in reserve waits
REST = 10  # times as long as a call has lasted the next one waits
MOST_REST = 0.2  # seconds that it waits at most to tell what was committed


class EffectTask(BackgroundTask):
    """Tells effects of messages what this process has written, right after the commit; and lets them look for
    themselves, for what comes with time, and for what another process was about to tell them when it was killed.

    in_reserve: tells whether another process serves the same, and looks more often: so what an idle fleet costs does
    not grow with the processes as fast as these.
    """

    def __init__(self, log: Log, in_reserve: Callable[[], bool]):
        super().__init__(log, "effects", INTERVAL)
        self._in_reserve = in_reserve
        self._lock = threading.Lock()
        self._written: list[EffectWrite] = []
        self._busy = False
        self._due_at = 0.0  # when they are to look for themselves

    def tell_of(self, written: Sequence[EffectWrite]) -> None:
        """Let effects know of these writes. From any thread."""
        with self._lock:
            self._written += written
        self.wake()

    @property
    def idle(self) -> bool:
        """Whether effects know of all that was written."""
        with self._lock:
            return not (self._written or self._busy)

    def run_once(self) -> bool:
        """Tell effects what is new, and let them look if that is due."""
        try:
            self._tell_and_look()
        finally:
            self.interval = max(0.0, self._due_at - time.monotonic())
        return False

    def _tell_and_look(self) -> None:
        began = time.monotonic()
        if self._tell():  # others are told together, which may be many
            self._stopped.wait(min(MOST_REST, REST * (time.monotonic() - began)))
        began = time.monotonic()
        if began >= self._due_at:
            self._due_at = began + INTERVAL
            waits = [effect.committed(self.log, ()) for effect in with_header()]
            seldom = RESERVE if self._in_reserve() else 1
            ended = time.monotonic()
            self._due_at = ended + max(seldom * (INTERVAL if any(waits) else LOOK), REST * (ended - began))

    def finish(self) -> None:
        """Tell them what was written last."""
        self._tell()

    def _tell(self) -> bool:
        """Tell effects what is new; return whether there was anything."""
        with self._lock:
            written, self._written = self._written, []
            self._busy = bool(written)
        try:
            for effect, its in by_effect(written).items():
                if effect.committed(self.log, its):
                    self._due_at = min(self._due_at, time.monotonic() + INTERVAL)
        except BaseException:
            self._due_at = min(self._due_at, time.monotonic() + INTERVAL)
            with self._lock:
                self._written = written + self._written
            raise
        finally:
            self._busy = False
        return bool(written)
