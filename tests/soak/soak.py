"""One run: start everything, let the nemesis loose, drain, stop, read the tables, and judge."""

import math
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tests.logs import LOG
from tests.soak import databases, history, phases, workload
from tests.soak.alterations import Alterations
from tests.soak.backlog import Backlog, pending, unsettled_on
from tests.soak.checker import Checker
from tests.soak.fleet import ALL, ROOT, Fleet
from tests.soak.job_tables import fill_in_jobs
from tests.soak.nemesis import Nemesis
from tests.soak.periodic import end_ticks
from tests.soak.records import Reader, Record
from tests.soak.schedule import schedule
from tests.soak.standstill import longest_standstill
from tests.soak.tables import fill_in, leases_left, rows_left
from tests.soak.topologies import choice
from tests.soak.topologies.losses import Losses, forget
from tests.soak.topologies.topology import Topology
from tests.soak.watch import Sample, Watch

DRAIN_LIMIT = 240.0  # seconds: when to give up waiting
PLANTED_LIMIT = 30.0  # the same if faults are planted, with which it may never end
SHORT = 120.0  # seconds: runs up to here keep messages less long, so that their collection is seen sooner
COLLECT_LIMIT = 60.0
LOOK_LIMIT = 60.0

T = TypeVar("T")
Found = TypeVar("Found", Counter[str], set[tuple[str, str, str]])


@dataclass(frozen=True)
class Plan:
    """What is to be run."""

    database: str
    seconds: float
    seed: int
    rate: float  # single messages a second, as far as it goes
    bulk_rate: float  # and in bulk
    only: tuple[str, ...] = ()  # kinds of faults
    sabotaged: str = ""
    phases: tuple[str, ...] = ()
    calm: bool = False  # no faults but those of the phases
    drain: float = DRAIN_LIMIT
    topology: str = ""

    @property
    def place(self) -> str:
        """What it runs on: the topology, or the database."""
        return self.topology or self.database

    @property
    def retention(self) -> float:
        """Seconds that messages are kept: longer than any fault, so that a repeated id meets its first."""
        return 15.0 if self.seconds <= SHORT else 30.0

    @property
    def drain_limit(self) -> float:
        """Seconds after which the drain is given up."""
        return PLANTED_LIMIT if self.sabotaged else self.drain


@dataclass
class Result:
    """What came of a run."""

    plan: Plan
    folder: Path
    record: Record
    checker: Checker
    samples: list[Sample]
    done: dict[str, int]  # faults, by kind
    impossible: dict[str, str]
    drained_after: float | None  # seconds after the last fault; None: not at all
    backlog: int  # how many deliveries were still to be done when the last fault ended
    standstill: float  # the longest time in which nothing began although no fault explains it, in seconds
    clients_left: int
    seconds: float
    troubles: list[str] = field(default_factory=list)
    losses: Losses = field(default_factory=Losses)
    alterations: dict[str, int] = field(default_factory=dict)  # processes that alter: by how they ended

    @property
    def passed(self) -> bool:
        return not self.troubles and not any(self.checker.violations.values())


def run(plan: Plan, folder: Path) -> Result:
    """Run the plan; its history is kept in `folder`, which is to be empty."""
    topology = choice.TOPOLOGIES[plan.topology]() if plan.topology else None
    database = topology or databases.make(plan.database, plan.phases)
    try:
        database.start()
        os.environ.update(DATABASE_URL=database.url, DJANGO_SETTINGS_MODULE="tests.soak.settings")
        import django

        django.setup()
        database.prepare()
        make_tables(database)
        register_groups()
        return Run(plan, folder, database, topology).run()
    finally:
        if topology:
            topology.keep_logs(folder)
        database.close()


def make_tables(database: databases.Database) -> None:
    """Make the tables as the applications' user."""
    for alias in database.aliases:
        subprocess.run(
            [sys.executable, "manage.py", "migrate", "--run-syncdb", "--verbosity=0", f"--database={alias}"],
            cwd=ROOT,
            env=os.environ | database.environment | {"DATABASE_URL": database.consumers_url},
            check=True,
        )


def register_groups() -> None:
    """Register the groups of the topic of batches: a batch waits for those that are registered when its members are
    published."""
    from sqlqueue.log.groups import register

    for reader in workload.JOB_READERS:
        if reader.topic == workload.MEMBERS:
            register(LOG, reader.group, reader.topic)


class Run:
    """A run on a database that is ready."""

    def __init__(
        self, plan: Plan, folder: Path, database: databases.Database, topology: Topology | None = None
    ) -> None:
        self.plan, self.folder, self.database, self.topology = plan, folder, database, topology
        self.journal = history.Journal(folder, "harness")
        if topology:
            topology.begin_run(self.journal)
        options = workload.options(plan.retention)
        self.schedules = topology.schedules if topology else workload.SCHEDULES
        self.fleet = Fleet(
            folder,
            self.journal,
            consumers_url=database.consumers_url,
            publishers_url=database.publishers_url,
            environment=database.environment,
            options=topology.options(options) if topology else options,
            seed=plan.seed,
            rates=(plan.rate, plan.bulk_rate),
            sabotaged=plan.sabotaged,
            phases=plan.phases,
            crew=topology.crew if topology else ALL,
        )
        of_nodes = topology.kinds if topology else ()
        altered = not topology or topology.altered
        tracks = [] if plan.calm else schedule(plan.seed, plan.seconds, plan.database, plan.only, of_nodes, altered)
        planned = phases.plan(plan.seed, plan.seconds, plan.phases)
        self.phases = phases.Phases(planned, plan.seconds, self.fleet, database, self.journal, plan.seed)
        self.alterations = Alterations(self.fleet, database.publishers_url, self.journal, plan.drain_limit)
        self.nemesis = Nemesis(tracks, self.fleet, database, self.alterations, self.journal, plan.seconds)
        self.watch = Watch(self.fleet, database, self.journal, Backlog(folder, plan.bulk_rate, database.aliases))

    def run(self) -> Result:
        began = time.monotonic()
        troubles: list[str] = []
        try:
            self.fleet.start()
            self.watch.start()
            self.phases.start()
            self.nemesis.run()
            self.phases.join()
            # The publishers' last word comes with the last fault, so that there is something left to drain.
            remaining = began + self.plan.seconds - time.monotonic()
            time.sleep(max(0.0, remaining))
            ended = time.monotonic()
            self.fleet.stop_publishers()
            self.nemesis.finish()
            ticks_until = self._look(lambda: end_ticks(time.monotonic() + self.plan.drain_limit, self.schedules))
            backlog = self._look(self._unsettled)
            drained = self._drain(ended)
            leftovers = {} if drained is None or self.plan.sabotaged else self._leftovers_while_running()
            self.watch.stop()
            until = time.monotonic()
            statuses = self.fleet.stop_consumers()
            if any(statuses.values()):
                troubles.append(f"consumers ended with {statuses}")
            clients = self._clients_left()
            for failover in self.topology.failovers if self.topology else []:
                facts = sorted(failover.forgotten), sorted(failover.pending)
                self.journal.note("failover", failover.died, failover.opened, *facts)
            record = Reader().read(history.read(self.folder))
            fill_in_jobs(record.jobs)
            for alias in self.database.aliases:
                fill_in(record, alias)
            if self.topology:
                self.topology.fill_in(record)
            record.jobs.ticks_until = ticks_until
            record.crowded = self.watch.crowded
            record.drained, record.since, record.until = drained is not None, began, until
            record.pending = set() if record.drained else self._on_all(pending)
            record.leftovers = Counter(leftovers) + self._on_all(leases_left)
        except Exception:
            print(*self.nemesis.failures, sep="\n", file=sys.stderr)  # they may be the reason
            raise
        finally:
            self.phases.stop()
            self.nemesis.stop()
            self.fleet.end()
        losses = forget(record)
        of_nodes = self.topology.harms if self.topology else set()
        # They last longer than schedules are attended to at a time.
        record.jobs.pauses += [(each.began, each.ended) for each in record.faults if each.kind in of_nodes]
        if (losses.messages or losses.acks) and self.topology and not self.topology.may_forget:
            some = [*sorted(losses.messages), *sorted(losses.acks)][:5]
            troubles.append(f"the database forgot what it had confirmed: {some}")
        if late := self.schedules.keys() - ticks_until.keys():
            troubles.append(f"ticks of {', '.join(sorted(late))} were always due, until {self.plan.drain_limit:g} s")
        troubles += [*self.nemesis.failures, *self.phases.failures]
        if self.fleet.broken:
            troubles.append(f"publishers ended with errors of their own: {self.fleet.broken}: see the folder's logs")
        if count := crashes(self.folder):
            troubles.append(f"{count} iterations of consumers ended with an error of their own: see the folder's logs")
        if count := dead_threads(self.folder):
            troubles.append(f"{count} threads of a publisher ended with an error: see the folder's logs")
        standstill = longest_standstill(record, began, ended, of_nodes)
        if drained is None:
            left = self._look(self._unsettled)
            troubles.append(f"not drained within {self.plan.drain_limit:g} s: {left} deliveries left")
        elif drained > record.crowded * (2 * workload.LEASE_DURATION + work_seconds(record, backlog, ended - began)):
            troubles.append(f"drained only after {drained:.1f} s")
        if standstill > workload.UNSERVED:
            troubles.append(f"nothing began for {standstill:.1f} s, and no fault tells why")
        if clients:
            troubles.append(f"{clients} connections are left")
        return Result(
            self.plan,
            self.folder,
            record,
            Checker(record, one_writer=self.plan.database == "sqlite").check(),
            self.watch.samples,
            dict(self.nemesis.done),
            self.nemesis.impossible | self.phases.impossible,
            drained,
            backlog,
            standstill,
            clients,
            time.monotonic() - began,
            troubles,
            losses,
            dict(self.alterations.done),
        )

    def _look(self, read: Callable[[], T]) -> T:
        """Look at the tables; again if the connection is lost: a node that others still come back to may be left."""
        from sqlqueue.database import retries

        deadline = time.monotonic() + LOOK_LIMIT

        def look() -> list[T]:
            return [read()]

        found = retries.patiently(LOG, look, give_up=lambda: time.monotonic() > deadline)
        assert found, f"the tables could not be read for {LOOK_LIMIT:g} s"
        return found[0]

    def _unsettled(self) -> int:
        return unsettled_on(self.database.aliases)

    def _on_all(self, read: Callable[[str], Found]) -> Found:
        """Return what is found on all databases together."""
        first, *others = map(read, self.database.aliases)
        for found in others:
            first = first + found if isinstance(first, Counter) else first | found
        return first

    def _drain(self, since: float) -> float | None:
        """Wait until everything is settled; return how long after `since`, or None if it is not within the limit."""
        while time.monotonic() < since + self.plan.drain_limit:
            if not self._look(self._unsettled):
                return time.monotonic() - since
            time.sleep(0.1)
        return None

    def _leftovers_while_running(self) -> Counter[str]:
        """Wait for collection, and return what it has left."""
        deadline = time.monotonic() + self.plan.retention + COLLECT_LIMIT
        while True:
            left = self._look(lambda: self._on_all(rows_left))
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.5)

    def _clients_left(self) -> int:
        """Return the connections that are left once the server has noticed that the clients are gone."""
        deadline = time.monotonic() + 10
        while (clients := self.database.clients()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return clients


def crashes(folder: Path) -> int:
    """Return how many tracebacks of iterations and background tasks are in the logs: no fault excuses them."""
    return sum(log.read_text(errors="replace").count(", in _guarded") for log in (folder / "logs").glob("*.log"))


def dead_threads(folder: Path) -> int:
    """Return how many threads of the publisher of everyday jobs have ended with an error."""
    log = folder / "logs" / "jobs.log"
    return log.read_text(errors="replace").count("Exception in thread") if log.exists() else 0


def work_seconds(record: Record, backlog: int, seconds: float) -> float:
    """Return how long the work that was left may take: at the rate of the run, which took so many seconds before the
    drain, and at least what one message may, and the long jobs of a partition one after the other."""
    first = record.handlings[0].began if record.handlings else 0.0
    drain = first + seconds
    rate = max(1.0, sum(handling.began <= drain for handling in record.handlings) / seconds)
    jobs: Counter[int] = Counter()
    for each in record.handlings:
        if each.topic == workload.LABOR and each.until > drain:
            jobs[each.partition] += math.ceil(each.until - max(each.began, drain))
    return 2 * workload.TOO_LONG + max(jobs.values(), default=0) + 2 * backlog / rate
