"""The values that pass between an assigned partition, the handler executor and the settle transaction."""

from __future__ import annotations

import itertools
import math
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from sqlqueue.core import effects
from sqlqueue.core.effects import EffectWrite
from sqlqueue.core.outcomes import COMMITTED, EXPIRED, SUCCESS, Outcome, needs
from sqlqueue.core.partition.blocked import StoredRange
from sqlqueue.core.partition.ref import HeldLease

# Whether a message is in flight. ALONE is the least value of one that is alone: the column holds TOGETHER + the
# attempt's deaths, which is how many consumer processes in a row have ended with the message once this one has, too.
NOT_IN_FLIGHT, TOGETHER, ALONE = range(3)

HEAVY = 4_096  # characters of a message whose payload does not stay in memory for its ack

_serials = itertools.count(1)


class FetchedMessage(NamedTuple):
    """A row of the log as a fetch reads it; payload and headers are still JSON text, times what the driver gave.

    body: of a payload of bytes; expires: monotonic seconds of the process, None for never.
    """

    offset: int
    key: str
    id: str
    payload: Any
    headers: Any
    created: Any
    target_group: str
    published: Any = None  # of a message that was scheduled: when that was, and when it was due
    due: Any = None
    body: Any = None
    expires: float | None = None

    @property
    def size(self) -> int:
        """The characters of its payload and headers, or the bytes."""
        return len(self.payload or "") + len(self.headers or "") + len(self.body or "")


def sizes_of(messages: Iterable[Sequence[Any]]) -> list[int]:
    """Return the size of each of these messages."""
    return [len(each[3] or "") + len(each[4] or "") + len(each[9] or "") for each in messages]


class StoredRow(NamedTuple):
    """A delivery-state row as it is read: remaining is in seconds until it is due, by the database's clock."""

    offset: int
    acked: bool
    in_flight: int
    retry_count: int
    remaining: float
    key: str


class RowWrite(NamedTuple):
    """The values to store in a delivery-state row; delay in seconds from now; error None keeps what is there."""

    offset: int
    acked: bool
    in_flight: int
    retry_count: int
    delay: float = 0.0
    error: str | None = None


class DeadLetter(NamedTuple):
    """A message to copy to the dead-letter topic, with the attempts it had."""

    message: FetchedMessage
    attempts: int
    error: str


class Attempt:
    """One delivery of one message. Times are monotonic seconds of the process.

    number: 1 for the message's first attempt. outcome: set once, by the assigned partition that applies it; an outcome
    that the handler reports later is ignored. deaths: how many consumer processes in a row have ended with the message
    in flight; after one it is dispatched alone. reply: what its handler has replied, as JSON text; None for nothing.
    claimed_until: it may not start later, unless it has started before; set for one that is claimed ahead.
    """

    __slots__ = (
        "claimed_until",
        "deadline",
        "deaths",
        "finished",
        "lease",
        "message",
        "number",
        "outcome",
        "reply",
        "serial",
        "started",
    )

    def __init__(self, lease: HeldLease, message: FetchedMessage, number: int, deaths: int = 0):
        self.lease, self.message, self.number, self.deaths = lease, message, number, deaths
        self.outcome: Outcome | None = None
        self.reply: str | None = None
        self.started = self.finished = self.deadline = 0.0
        self.claimed_until = math.inf
        self.serial = next(_serials)

    @property
    def offset(self) -> int:
        """The offset of its message."""
        return self.message.offset

    @property
    def refused(self) -> Outcome | None:
        """Its outcome if its handler is not to be called: its message's time was over when it started, or that needs an
        app which is not installed."""
        message = self.message
        if message.expires is not None and self.started >= message.expires:
            return EXPIRED
        app = effects.missing_app(message.headers) if message.headers is not None else ""
        return needs(app) if app else None


class Execution:
    """Attempts of one ordering queue that one thread makes one after another, or a batch that it handles in one call
    (apart: in a call for each of its messages, which have failed before).

    The lock decides between a worker thread that starts an attempt and the control thread that releases it.
    """

    __slots__ = ("apart", "attempts", "batch", "follows", "lease", "lock", "next", "passed", "position", "stopped")

    def __init__(
        self,
        lease: HeldLease,
        attempts: Sequence[Attempt],
        batch: bool = False,
        position: int = 0,
        follows: bool = False,
        apart: bool = False,
    ):
        self.lease, self.attempts, self.batch, self.apart = lease, attempts, batch, apart
        # The attempts follow the stored position, up to F, and have no rows: an atomic batch may move it past them.
        self.follows, self.position = follows, position
        self.passed = 0  # how many of them it has passed
        self.lock = threading.Lock()
        self.next = 0
        self.stopped = False

    def start_next(self) -> Attempt | None:
        """Return the next attempt, which the caller has to make; None if there is none left, or the execution was
        stopped."""
        with self.lock:
            index = self.next
            if self.stopped or index >= len(self.attempts):
                return None
            self.next = index + 1
            return self.attempts[index]

    def start_all(self) -> Sequence[Attempt]:
        """Return all attempts that are left, which the caller has to make or release; none if the execution was
        stopped."""
        with self.lock:
            if self.stopped:
                return ()
            begun, self.next = self.next, len(self.attempts)
            return self.attempts[begun:]

    def move_for(self, attempts: Sequence[Attempt]) -> int | None:
        """Return where the position moves with the ack of these attempts; None if each needs a row."""
        if not self.follows or list(self.attempts[self.passed : self.passed + len(attempts)]) != list(attempts):
            return None
        return attempts[-1].offset

    def moved(self, attempts: Sequence[Attempt], to: int) -> None:
        """Record that the handlers' transaction has moved the position past these attempts."""
        self.passed += len(attempts)
        self.position = to

    def stop(self) -> Sequence[Attempt]:
        """Let no further attempt start; return those that had not started, which the caller has to release."""
        with self.lock:
            unstarted = () if self.stopped else self.attempts[self.next :]
            self.stopped = True
            return unstarted


def effects_of_filtered(lease: HeldLease, message: FetchedMessage) -> list[EffectWrite]:
    """Return what the effects write of a message that the consumer's filter has left out: it is acked without an
    attempt."""
    offset, headers = message.offset, message.headers
    return [EffectWrite(lease, offset, 0, effect, True, headers) for effect in effects.of_headers(headers)]


class SettledAttempt(NamedTuple):
    """An attempt, and the outcome that a settle stores for it."""

    attempt: Attempt
    outcome: Outcome

    @property
    def offset(self) -> int:
        """The offset of its message."""
        return self.attempt.offset


def count_kinds(settled: Sequence[SettledAttempt]) -> Mapping[str, int]:
    """Return how many of these have an outcome of each kind. Mostly all have SUCCESS."""
    outcomes = [outcome for _, outcome in settled]
    if outcomes and outcomes.count(SUCCESS) == len(outcomes):
        return {SUCCESS.kind: len(outcomes)}
    return Counter([outcome.kind for outcome in outcomes])


@dataclass(frozen=True, slots=True, eq=False)
class SettlePlan:
    """What one settle writes for one assigned partition, in one transaction fenced by its token. Values, never
    increments.

    rows: to store; deletes: offsets of acked rows that the position has passed; executions: to start once their claims
    are written; ranges: blocked ranges to store or delete; taken_up: offsets of rows that are new, of messages that a
    blocked range covered until now; atomic: handlers settle in transactions of their own, which may be ahead of this
    plan; release: this is the last plan under the lease; keep_results: for how many seconds what the handlers returned
    is stored, None for not at all; filtered: how many messages it acks that the consumer's filter has left out;
    effects: what effects write; ahead: `claimed` is above what was dispatched; falls_back: it was, and is to be no
    more.
    """

    lease: HeldLease
    position: int
    watermark: int
    claimed: int
    rows: Sequence[RowWrite] = ()
    deletes: Sequence[int] = ()
    dead: Sequence[DeadLetter] = ()
    settled: Sequence[SettledAttempt] = ()
    executions: Sequence[Execution] = ()
    ranges: Sequence[StoredRange] = ()
    taken_up: Set[int] = frozenset()
    atomic: bool = False
    release: bool = False
    keep_results: float | None = None
    filtered: int = 0
    effects: Sequence[EffectWrite] = ()
    ahead: bool = False
    falls_back: bool = False

    def without(self, committed: Set[int]) -> SettlePlan:
        """Return the plan for what the handlers' own transactions have not settled: nothing is to be written for the
        messages at these offsets, and their outcome is COMMITTED."""
        if not committed:
            return self
        return replace(
            self,
            rows=tuple(row for row in self.rows if row.offset not in committed),
            dead=tuple(dead for dead in self.dead if dead.message.offset not in committed),
            settled=tuple(
                SettledAttempt(each.attempt, COMMITTED) if each.offset in committed else each for each in self.settled
            ),
            effects=tuple(each for each in self.effects if each.offset not in committed),
        )


class SettleResult(NamedTuple):
    """What the execution of a plan has written. settled, dead: those of the plan, except that a message which its
    handler's own transaction had settled is acked; stale: the fencing token was stale, and nothing was written;
    effects: what effects have written."""

    plan: SettlePlan
    settled: Sequence[SettledAttempt]
    dead: Sequence[DeadLetter]
    stale: bool = False
    effects: Sequence[EffectWrite] = ()
