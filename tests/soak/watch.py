"""Watches a run: memory, threads, open files and connections, and whether the machine itself stood still."""

import os
import threading
import time
from collections import deque
from dataclasses import dataclass

from tests.soak import system
from tests.soak.backlog import Backlog
from tests.soak.databases import Database
from tests.soak.fleet import Fleet
from tests.soak.history import Journal

INTERVAL = 0.1
SAMPLE_EVERY = 2.0
USUAL_LOAD = 4.0  # processes that want to run, for each processor: what a run does by itself
LOAD_OVER = 20.0  # seconds: the system's own average of a minute is far below what a short run is up against
USUAL_STEP = 25e-9  # seconds of a processor that one step of an empty Python loop takes
STALL = 1.5  # seconds that this thread's pause may take at most


def measured_step() -> float:
    """Return how many seconds of this machine's processor one step of an empty Python loop takes."""
    steps, times = 200_000, []
    for _ in range(5):
        before = time.thread_time()
        for _ in range(steps):
            pass
        times.append(time.thread_time() - before)
    return min(times) / steps


@dataclass(frozen=True)
class Sample:
    """The witness, a consumer process that the nemesis spares, at one moment: bytes and counts."""

    at: float
    memory: int
    threads: int
    files: int
    clients: int


class Watch:
    """Takes samples in a thread of its own, and asks publishers to wait when consumers cannot follow."""

    def __init__(self, fleet: Fleet, database: Database, journal: Journal, backlog: Backlog) -> None:
        self.fleet, self.database, self.journal, self.backlog = fleet, database, journal, backlog
        self.samples: list[Sample] = []
        self.load = 0.0  # processes that want to run, for each processor: the most, as a mean over LOAD_OVER
        self._step = measured_step()
        self._runnable: deque[int] = deque(maxlen=int(LOAD_OVER / INTERVAL))
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        # Two threads would see stalls better; but a stall of this process is a stall of its proxies, too.
        due = time.monotonic() + SAMPLE_EVERY
        while True:
            before = time.monotonic()
            if self._stopping.wait(INTERVAL):
                return
            now = time.monotonic()
            if now - before > INTERVAL + STALL:
                self.journal.note("fault", "machine-stalled", before, "everybody")
            self._look_at_load()
            if now >= due:
                self._sample(now)
                due = now + SAMPLE_EVERY

    @property
    def crowded(self) -> float:
        """How many times slower a process may be than in a run on a usual machine of its own; at least 1."""
        return max(1.0, self.load / USUAL_LOAD) * max(1.0, self._step / USUAL_STEP)

    def _look_at_load(self) -> None:
        self._runnable.append(system.runnable())
        if len(self._runnable) == self._runnable.maxlen:
            self.load = max(self.load, sum(self._runnable) / len(self._runnable) / (os.cpu_count() or 1))

    def _sample(self, now: float) -> None:
        from django.db import Error, connections

        pid = self.fleet.consumers["witness"].pid
        if not pid:
            return
        clients = -1  # the database is away
        try:
            clients = self.database.clients()
            self.backlog.look()
        except Error:
            connections.close_all()
        self.samples.append(Sample(now, system.memory(pid), system.threads(pid), system.open_files(pid), clients))
