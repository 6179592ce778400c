"""What is known of a run's everyday jobs: what their publishers were told, and what the tables say at the end.

Moments of the tables are seconds since the epoch by the database's clock; all others are the history's.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

NEVER = float("inf")
CREATED, UPDATED, IGNORED = "created", "updated", "ignored"


@dataclass
class Offer:
    """One act on a name. number: also the value that it offers; what: one of named.ACTS."""

    name: str
    number: int
    what: str
    delay: float
    began: float
    told: str | bool | None = None  # a status, or whether a cancellation came in time; None: in doubt
    back: bool = False
    ended: float = NEVER  # when it was told so; what is in doubt may still be done later

    @property
    def in_doubt(self) -> bool:
        return self.told is None and not self.back

    @property
    def stored(self) -> bool:
        """Whether it was told that its value is the name's."""
        return self.told in (CREATED, UPDATED)

    @property
    def may_remove(self) -> bool:
        """Whether it may have cancelled the name's message."""
        return self.what == "cancel" and (self.told is True or self.in_doubt)


@dataclass
class Enqueued:
    """A task that was enqueued. total: what it returns, or raises, says so."""

    id: str
    kind: str
    total: int
    told: bool = False
    back: bool = False


@dataclass(frozen=True)
class LogEntry:
    """A message in one of the logs that are kept."""

    topic: str
    key: str
    id: str
    offset: int
    payload: Any
    group: str  # the only one that it is for; "": all
    entered: float
    expires: float | None = None


@dataclass(frozen=True)
class KeptResult:
    """What a handler returned, as it was kept."""

    topic: str
    group: str
    id: str
    outcome: str
    value: Any


@dataclass(frozen=True)
class TaskEnd:
    """What a task's result says at the end, by the interface."""

    status: str
    value: Any
    errors: list[str]
    """The classes, by their dotted paths."""


@dataclass
class Ask:
    """One call. what: reply, failed (value: the group), timeout or error; "" as long as it has not returned."""

    id: str
    """That of its payload."""
    caller: int
    timeout: float
    began: float
    ended: float | None = None
    what: str = ""
    value: Any = None


@dataclass(frozen=True)
class BatchEnd:
    """A batch as the tables have it at the end."""

    state: str
    """finished, cancelled, open: not sealed, or running."""
    members: int
    acked: int
    dead: int


@dataclass
class Jobs:
    """What happened to everyday jobs."""

    offers: list[Offer] = field(default_factory=list)
    values: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    """What handlers were given, by name."""
    enqueued: list[Enqueued] = field(default_factory=list)
    ends: dict[str, TaskEnd] = field(default_factory=dict)
    """By the task's id."""
    dead_tasks: list[str] = field(default_factory=list)
    """The ids of the tasks that are dead letters."""
    batches: dict[str, bool | None] = field(default_factory=dict)
    """By name: whether it was filled (True), or given up (False); None: in doubt."""
    batch_ends: dict[str, BatchEnd] = field(default_factory=dict)
    asks: list[Ask] = field(default_factory=list)
    sockets: list[int] = field(default_factory=list)
    """How many sockets of callers each process had open when it left."""
    filtered: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How many messages filters have left out, as was announced: topic, group."""
    log: list[LogEntry] = field(default_factory=list)
    results: list[KeptResult] = field(default_factory=list)
    pauses: list[tuple[float, float]] = field(default_factory=list)
    """From when to when all schedules were paused."""
    ticks_until: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Between which moments of the database's clock each schedule was ended, all its ticks published."""
    clock: float = 0.0
    """By how many seconds the database's clock is ahead of the history's."""
