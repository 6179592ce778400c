"""The processes of a run: publishers and consumers, on several \"hosts\". Who is killed is started again.

Each host has a clock of its own (libfaketime, where the machine has it): a file that the nemesis writes to.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.soak import jobs as job_publisher
from tests.soak import labor as labor_publisher
from tests.soak import publisher
from tests.soak.history import FOLDER, Journal
from tests.soak.system import descendants, signal_if_there
from tests.soak.workload import APART_TOPICS, ONLY_TOPICS, PHASES, SABOTAGE, THREADS

ROOT = Path(__file__).resolve().parents[2]
RESTART_AFTER = 0.3
FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)


@dataclass(frozen=True)
class Crew:
    """Which processes there are. publishers: the modules of their ways; hosts: what `runconsumers` is told."""

    publishers: Mapping[str, str]
    hosts: Mapping[str, Sequence[str]]


SUPERVISED, ALONE = ("--processes=2",), ("--processes=0",)
WITHOUT_JOBS = Crew(
    dict.fromkeys(publisher.WAYS, "publisher"),
    # The witness is never killed or stopped by the nemesis: its memory is watched over the whole run.
    {"supervised": SUPERVISED, "alone": ALONE, "witness": ALONE, "visitor": ALONE},
)
# Long handlers take all of their threads. The nemesis spares them, too: what is in doubt is begun alone.
APART = {"four-threads": ALONE, "one-thread": (*ALONE, "--threads=1")}
SPARED = {"witness", *APART}
ALL = Crew(
    {
        **WITHOUT_JOBS.publishers,
        **dict.fromkeys(job_publisher.WAYS, "jobs"),
        **dict.fromkeys(labor_publisher.WAYS, "labor"),
    },
    {**WITHOUT_JOBS.hosts, **APART},
)


@dataclass
class Member:
    """A process that is started again when it ends, for as long as it is wanted."""

    name: str
    words: Callable[[int], list[str]]  # of its n-th incarnation
    env: dict[str, str]
    wanted: bool = True
    incarnation: int = 0
    process: subprocess.Popen[bytes] | None = None
    due: float = 0.0
    clock: Path | None = None
    pids: list[int] = field(default_factory=list)  # of all its incarnations

    @property
    def pid(self) -> int | None:
        """Its process id, or None while it does not run."""
        return self.process.pid if self.process and self.process.poll() is None else None


class Fleet:
    """All processes. A thread of its own starts those that are due."""

    def __init__(
        self,
        folder: Path,
        journal: Journal,
        *,
        consumers_url: str,
        publishers_url: str,
        options: dict[str, object],
        seed: int,
        rates: tuple[float, float],
        sabotaged: str = "",
        phases: Sequence[str] = (),
        crew: Crew = ALL,
        environment: Mapping[str, str] = {},
    ) -> None:
        self.folder, self.journal = folder, journal
        self.logs = folder / "logs"
        self.logs.mkdir()
        self._options, self._seed, self._rates = json.dumps(options), seed, rates
        self._sabotaged, self._phases = sabotaged, ",".join(phases)
        self.broken: Counter[str] = Counter()  # publishers that ended with an error of their own
        self.killed: set[int] = set()  # the nemesis adds to it
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="fleet", daemon=True)
        self._crew, self._environment = crew, environment
        self.publishers = [self._publisher(way, publishers_url) for way in crew.publishers]
        self.consumers = {name: self._consumer(name, consumers_url) for name in crew.hosts}
        self.consumers["visitor"].wanted = False

    @property
    def members(self) -> list[Member]:
        return [*self.publishers, *self.consumers.values()]

    def start(self) -> None:
        """Start everybody."""
        self._thread.start()

    def stop_publishers(self) -> None:
        """Let publishers finish their transactions; return when they have gone."""
        self._leave(self.publishers, timeout=30)

    def stop_consumers(self) -> dict[str, int]:
        """Stop consumers gracefully; return their exit statuses."""
        self._leave(list(self.consumers.values()), timeout=60)
        return {name: self._status(host.process) for name, host in self.consumers.items() if host.process}

    def end(self) -> None:
        """End whatever is left, in any state."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        for member in self.members:
            if member.process:
                for pid in [member.process.pid, *descendants(member.process.pid)]:
                    signal_if_there(pid, signal.SIGKILL)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(member.process.pid, signal.SIGKILL)
                member.process.wait()
            for pid in member.pids:  # what libfaketime leaves behind
                for name in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
                    Path("/dev/shm", name).unlink(missing_ok=True)

    def environment(self, url: str) -> dict[str, str]:
        """Return the environment of a process of the run."""
        return os.environ | {
            **self._environment,
            "DATABASE_URL": url,
            "DJANGO_SETTINGS_MODULE": "tests.soak.settings",
            "SQLQUEUE": self._options,
            FOLDER: str(self.folder),
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            PHASES: self._phases,
            SABOTAGE: self._sabotaged,
        }

    # -- for the nemesis ----------------------------------------------------------------------------------------------

    def consumer_pids(self) -> list[int]:
        """Return the consumer processes that faults are for, in a fixed order of hosts."""
        with self._lock:
            return [pid for name in self.consumers if name not in SPARED for pid in self._pids_of(name)]

    def _pids_of(self, host: str) -> list[int]:
        pid = self.consumers[host].pid
        if "--processes=0" in self._crew.hosts[host]:
            return [pid] if pid else []
        return children(pid)

    def publisher_pids(self) -> list[int]:
        """Return the publishers."""
        with self._lock:
            return [member.pid for member in self.publishers if member.pid]

    def supervisor_pid(self) -> int | None:
        """Return the supervisor of consumers."""
        return self.consumers["supervised"].pid

    def join(self) -> list[int]:
        """Let the visitor come."""
        with self._lock:
            self.consumers["visitor"].wanted = True
        return []

    def leave(self, pick: float) -> list[int]:
        """Let the visitor go in order, or one of the others, which comes back."""
        visitor, alone = self.consumers["visitor"], self.consumers["alone"]
        with self._lock:
            if visitor.wanted:
                visitor.wanted = False
                return self._terminate(visitor)
            return self._terminate(alone if pick < 0.5 else self.consumers["supervised"])

    def shift_clock(self, pick: float) -> list[int]:
        """Set the clock of a host that has one of its own to somewhere within two hours of the real time."""
        clocks = [member for member in self.members if member.clock]
        member = clocks[int(pick * len(clocks))]
        seconds = int((pick * 1000 % 1 - 0.5) * 4 * 3600)
        assert member.clock
        member.clock.write_text(f"{seconds:+d}\n")
        return [member.pid] if member.pid else []

    # -- within -------------------------------------------------------------------------------------------------------

    def _publisher(self, way: str, url: str) -> Member:
        def words(incarnation: int) -> list[str]:
            name, seed = f"{way}{incarnation}", f"{self._seed} {way} {incarnation}"
            options = [f"--way={way}", f"--name={name}", f"--seed={seed}"]
            rates = [f"--rate={self._rates[0]}", f"--bulk-rate={self._rates[1]}"]
            return ["-m", f"tests.soak.{self._crew.publishers[way]}", *options, *rates]

        return self._member(way, words, url, has_clock=way in ("single", "sql"))

    def _consumer(self, name: str, url: str) -> Member:
        words = ["manage.py", "runconsumers", f"--threads={THREADS}", *self._crew.hosts[name]]
        member = self._member(name, lambda incarnation: words, url, has_clock=name in ("alone", "visitor"))
        if name in APART:
            member.env[ONLY_TOPICS] = ",".join(APART_TOPICS)
        return member

    def _member(self, name: str, words: Callable[[int], list[str]], url: str, has_clock: bool) -> Member:
        env = self.environment(url)
        member = Member(name, words, env)
        if has_clock and FAKETIME:
            member.clock = self.folder / f"clock-{name}"
            member.clock.write_text("+0\n")
            member.env = env | {
                "LD_PRELOAD": str(FAKETIME),
                "FAKETIME_TIMESTAMP_FILE": str(member.clock),
                "FAKETIME_CACHE_DURATION": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
        return member

    def _keep(self) -> None:
        while not self._stopping.wait(0.05):
            with self._lock:
                for member in self.members:
                    self._see_to(member)

    def _status(self, process: subprocess.Popen[bytes]) -> int:
        """Return a consumer's exit status; 0 if it was told to leave before it had got as far as its handlers, or was
        killed on purpose while it left."""
        if process.returncode == -signal.SIGKILL and process.pid in self.killed:
            return 0
        begun = any(self.folder.glob(f"consumer-{process.pid}-*.jsonl"))
        return 0 if process.returncode == -signal.SIGTERM and not begun else process.returncode

    def _see_to(self, member: Member) -> None:
        if member.pid or not member.wanted:
            return
        now = time.monotonic()
        if member.process and not member.due:
            self.journal.note("gone", member.name, member.process.pid, member.process.returncode)
            if member in self.publishers and member.process.returncode > 0:
                self.broken[member.name] += 1
            member.due = now + RESTART_AFTER
        if now >= member.due:
            self._launch(member)

    def _launch(self, member: Member) -> None:
        member.due = 0.0
        member.incarnation += 1
        with (self.logs / f"{member.name}.log").open("ab") as log:
            member.process = subprocess.Popen(
                [sys.executable, *member.words(member.incarnation)],
                cwd=ROOT,
                env=member.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        member.pids.append(member.process.pid)
        self.journal.note("started", member.name, member.process.pid)

    def _terminate(self, member: Member) -> list[int]:
        if not member.pid:
            return []
        pids = [member.pid, *children(member.pid)]
        signal_if_there(member.pid, signal.SIGTERM)
        return pids

    def _leave(self, members: list[Member], timeout: float) -> None:
        with self._lock:
            for member in members:
                member.wanted = False
                self._terminate(member)
        deadline = time.monotonic() + timeout
        for member in members:
            if member.process:
                try:
                    member.process.wait(max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    self.journal.note("stuck", member.name, member.process.pid)


def children(supervisor: int | None) -> list[int]:
    """Return the consumer processes of a supervisor, oldest first."""
    found = []
    for pid in descendants(supervisor) if supervisor else []:
        with contextlib.suppress(OSError):
            if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return sorted(found)
