"""The phases of a run: what fills windows, packets and keys, and what holds up a process without killing it.

They follow one another in a track of their own, beside the faults, by the run's seed:

burst            30,000 messages at full speed into two partitions, while a publishing transaction is open (1 to 30 s)
waiting          thousands of messages of a key behind one that waits for its retry, and others of other keys
heavy            a payload up to the packet limit that dies; due messages, and a bulk, that are together beyond it
errors           batches that fail, with errors of more than 10,000 characters that are not ASCII
language         a server that speaks German; ids that are there already are published again
async            async handlers use the ORM; their connections are cut
dead-letters     a consumer of a dead-letter topic, while a person discards and replays, and dead letters commit late
hung-loop        a receiver of a signal blocks the loop of a consumer process
hung-event-loop  an async handler blocks the event loop
idle             nothing is published for longer than the server keeps idle connections
"""

import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Collection, Sequence
from pathlib import Path
from random import Random

from tests.soak.backlog import REST
from tests.soak.databases import Database, Impossible
from tests.soak.fleet import ROOT, Fleet
from tests.soak.history import Journal
from tests.soak.periodic import PausedTicks
from tests.soak.records import EVERYBODY
from tests.soak.schedule import SHORT, Fault, Kind, track
from tests.soak.system import signal_if_there
from tests.soak.workload import BLOCKED, IDLE_TIMEOUT, WAIT

KINDS = (
    Kind("burst", 12, 1, 30),
    Kind("waiting", 8, WAIT, WAIT),
    Kind("heavy", 5, 4, 4),
    Kind("errors", 5, 4, 4),
    Kind("language", 3, 3, 3),
    Kind("async", 4, 8, 8),
    Kind("dead-letters", 8, 5, 15),
    Kind("hung-loop", 4, BLOCKED, BLOCKED),
    Kind("hung-event-loop", 4, BLOCKED, BLOCKED),
    Kind("idle", 4, IDLE_TIMEOUT + 3, IDLE_TIMEOUT + 5),
)
NAMES = tuple(kind.name for kind in KINDS)
OF_A_PROCESS = {"burst", "waiting", "heavy", "errors", "language", "dead-letters", "hung-event-loop"}
PAUSE = {True: 2.0, False: 8.0}  # seconds between two of them, on the average: in short runs, and in others
READY = '["subscriber",'  # what a consumer process writes down as soon as it runs
OVERTIME = 90.0  # seconds for which a phase's process may take longer than it was told


def chosen(text: str) -> tuple[str, ...]:
    """Return the phases that are meant: all, none, or names with commas. Raises ValueError for others."""
    if text in ("all", "none"):
        return NAMES if text == "all" else ()
    names = tuple(text.split(","))
    if unknown := set(names) - set(NAMES):
        raise ValueError(f"no phase is called {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    return names


def plan(seed: int, seconds: float, wanted: Collection[str]) -> list[Fault]:
    """Return when each phase of a run begins, how long it is, and what chooses its victim."""
    kinds = [kind for kind in KINDS if kind.name in wanted]
    return track(Random(f"{seed} phases"), kinds, PAUSE[seconds <= SHORT], seconds)


class Phases:
    """Carries the phases out, one after another; none begins after so many seconds. A phase's line: its name, its
    number, and when it began."""

    def __init__(
        self, planned: Sequence[Fault], seconds: float, fleet: Fleet, database: Database, journal: Journal, seed: int
    ) -> None:
        self.planned, self.seconds, self.seed = planned, seconds, seed
        self.fleet, self.database, self.journal = fleet, database, journal
        self.impossible: dict[str, str] = {}
        self.failures: list[str] = []
        self._began = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="phases", daemon=True)

    def start(self) -> None:
        """Begin; the moments of the plan count from now."""
        self._began = time.monotonic()
        self._thread.start()

    def join(self) -> None:
        """Return when the last one has ended."""
        self._thread.join()

    def stop(self) -> None:
        """Begin no more of them."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _follow(self) -> None:
        for number, phase in enumerate(self.planned, start=1):
            if self._stopping.wait(max(0.0, self._began + phase.at - time.monotonic())):
                return
            began = time.monotonic()
            if began > self._began + self.seconds:
                return
            try:
                self._carry_out(phase, f"{phase.kind}{number}")
            except Impossible as error:
                self.impossible[phase.kind] = str(error)
                continue
            except Exception:
                self.failures.append(f"{phase}: {traceback.format_exc()}")
            self.journal.note("phase", phase.kind, number, began)

    def _carry_out(self, phase: Fault, name: str) -> None:
        if phase.kind in self.database.lacks:
            raise Impossible(self.database.lacks[phase.kind])
        if phase.kind in OF_A_PROCESS:
            self._publish(phase, name)
        else:
            getattr(self, f"_{phase.kind.replace('-', '_')}")(phase)

    def _publish(self, phase: Fault, name: str) -> None:
        """Let a process of its own do what it has to, and wait for it."""
        log = self.fleet.logs / "phases.log"
        words = ["-m", "tests.soak.acts", phase.kind, f"--name={name}", f"--seconds={phase.seconds}"]
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, *words, f"--seed={self.seed} {name}"],
                cwd=ROOT,
                env=self.fleet.environment(self.database.publishers_url),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        deadline = time.monotonic() + phase.seconds + OVERTIME
        while process.poll() is None:
            if time.monotonic() > deadline or self._stopping.is_set():
                process.kill()
            time.sleep(0.05)
        if process.returncode:
            self.failures.append(f"{name} ended with {process.returncode}:\n{log.read_text(errors='replace')[-2000:]}")

    def _async(self, phase: Fault) -> None:
        """What is published all the while is what the handlers have to do after their connections are cut."""
        began = time.monotonic()
        # The checker explains delays by it as by a fault of the nemesis.
        self.journal.note("fault-begins", "cut-consumers", phase.at)
        try:
            self.database.faults()["cut-consumers"](0.0)
        finally:
            self.journal.note("fault", "cut-consumers", began, EVERYBODY)
        self._stopping.wait(phase.seconds)

    def _hung_loop(self, phase: Fault) -> None:
        while not (pids := [pid for pid in self.fleet.consumer_pids() if self._is_ready(pid)]):
            if self._stopping.wait(0.1):
                return
        pid = pids[int(phase.pick * len(pids))]
        signal_if_there(pid, signal.SIGUSR2)  # it writes down when it hangs
        self._stopping.wait(phase.seconds)

    def _is_ready(self, pid: int) -> bool:
        """Tell whether a process has got as far as its handlers: before that a signal would end it."""
        for file in self.fleet.folder.glob(f"consumer-{pid}-*.jsonl"):
            with file.open() as lines:
                if READY in lines.read(1000):
                    return True
        return False

    def _idle(self, phase: Fault) -> None:
        mark = Path(self.fleet.folder) / REST
        mark.touch()
        try:
            with PausedTicks(self.journal):
                self._stopping.wait(phase.seconds)
        finally:
            mark.unlink()
