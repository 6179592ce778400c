"""The faults of a run, by its seed: the same seed, length and database give the same faults at the same moments."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.soak.workload import LEASE_DURATION

QUIET = 4.0  # seconds at the beginning, in which everybody arrives


@dataclass(frozen=True)
class Kind:
    """A kind of fault: how often it is done beside the others of its track, and for how long (seconds)."""

    name: str
    weight: float
    least: float = 0.0
    most: float = 0.0


@dataclass(frozen=True)
class Fault:
    """One fault: when (seconds after the start), for how long, and a number in [0, 1) that chooses the victim."""

    at: float
    kind: str
    seconds: float
    pick: float


PROCESSES = (
    Kind("kill-consumer", 30),
    Kind("kill-publisher", 18),
    Kind("kill-supervisor", 4),
    Kind("stop-consumer", 12, LEASE_DURATION + 1, LEASE_DURATION + 4),
    Kind("stop-publisher", 8, 1, 6),
    Kind("join", 10),
    Kind("leave", 10),
)
# Not where the database's clock is the process's own (SQLite): processes that share a file share a host and its clock.
HOSTS = (*PROCESSES, Kind("shift-clock", 10))
ANYWHERE = (Kind("pause-topic", 5, 1, 4),)
SERVER = (
    *ANYWHERE,
    Kind("kill-server", 12, 0, 2),
    Kind("restart-server", 8, 0, 1),
    Kind("stop-server", 4, 1, 5),
    Kind("read-only", 6, 1, 4),
    Kind("cut-consumers", 10),
    Kind("cut-publishers", 8),
    Kind("delay-consumers", 6, 2, 5),
    Kind("delay-publishers", 4, 2, 5),
    Kind("lose-replies-consumers", 6, 0.5, 2),
    Kind("lose-replies-publishers", 6, 0.5, 2),
    Kind("silence-consumers", 5, 1, LEASE_DURATION + 3),
    Kind("silence-publishers", 3, 1, 6),
)
FILE = (*ANYWHERE, Kind("lock-database", 5, 0.5, 5), Kind("disk-full", 5, 1, 4))
# What becomes of the process that changes the partitions of a topic.
ALTERATIONS = (Kind("alter", 4), Kind("kill-alterer", 8), Kind("stop-alterer", 5, 1, 4))
# What harms one process, whose end the database sees at once: others go on.
OF_ONE_PROCESS = {
    *(kind.name for kind in ALTERATIONS),
    "kill-consumer",
    "kill-publisher",
    "kill-supervisor",
    "handler-dies",
    "join",
    "leave",
    "shift-clock",
}
OF_PROCESSES = {"sqlite": PROCESSES, "mariadb": HOSTS, "mysql": HOSTS, "postgresql": HOSTS}
INFRASTRUCTURE = {"sqlite": FILE, "mariadb": SERVER, "mysql": SERVER, "postgresql": SERVER}
# One fault in so many seconds, on the average; those with a length take that as well. In a long run the processes live
# longer, so that there is time for work between two starts of an interpreter.
SHORT = 120.0  # seconds
BETWEEN_PROCESSES, BETWEEN_INFRASTRUCTURE = {True: 3.5, False: 9.0}, {True: 6.0, False: 9.0}
BETWEEN_NODES = {True: 15.0, False: 20.0}  # a new replica takes as long
BETWEEN_ALTERATIONS = {True: 5.0, False: 15.0}


def schedule(
    seed: int,
    seconds: float,
    database: str,
    only: Iterable[str] = (),
    of_nodes: Sequence[Kind] = (),
    altered: bool = True,
) -> list[list[Fault]]:
    """Return the faults of a run, in tracks: those of a track follow one another, and the tracks run side by side.

    only: the kinds that are wanted; all if none is named. of_nodes: what is done to a topology's nodes, in place of
    what is done to a server; altered: whether partitions are changed.
    """
    wanted = set(only)
    tracks = []
    for name, kinds, pause in (
        ("processes", OF_PROCESSES[database], BETWEEN_PROCESSES),
        ("infrastructure", of_nodes or INFRASTRUCTURE[database], BETWEEN_NODES if of_nodes else BETWEEN_INFRASTRUCTURE),
        ("alterations", ALTERATIONS if altered else (), BETWEEN_ALTERATIONS),
    ):
        chosen = [kind for kind in kinds if not wanted or kind.name in wanted]
        tracks.append(track(random.Random(f"{seed} {name}"), chosen, pause[seconds <= SHORT], seconds))
    return tracks


def track(dice: random.Random, kinds: list[Kind], pause: float, seconds: float) -> list[Fault]:
    """Return what follows one another in so many seconds, with pauses of such a length on the average."""
    faults: list[Fault] = []
    at = QUIET
    while kinds:
        at += dice.expovariate(1 / pause)
        kind = dice.choices(kinds, [kind.weight for kind in kinds])[0]
        length = dice.uniform(kind.least, kind.most)
        fault = Fault(round(at, 3), kind.name, round(length, 3), round(dice.random(), 6))
        if at + length > seconds:
            break
        faults.append(fault)
        at += length
    return faults
