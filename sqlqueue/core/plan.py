"""The values that pass between a stream's memory, the handlers' pool and the settle transaction."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlqueue.core.blocked import StoredRange
from sqlqueue.core.outcomes import Outcome

if TYPE_CHECKING:
    from sqlqueue.core.stream import Stream

NOT_IN_FLIGHT, TOGETHER, ALONE = range(3)

_serials = itertools.count(1)


class Message(NamedTuple):
    """A row of the log as a fetch reads it; payload and headers are still JSON text, created what the driver gave."""

    offset: int
    key: str
    id: str
    payload: Any
    headers: Any
    created: Any
    target_group: str

    @property
    def size(self) -> int:
        """How many characters of it are in memory, but for its short columns."""
        return len(self.payload or "") + len(self.headers or "")


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

    message: Message
    attempts: int
    error: str


class Hand:
    """One hand-out of one message: what a handler gets, and what becomes of it. Times are the process's monotonic
    ones."""

    __slots__ = (
        "alone",
        "attempt",
        "deadline",
        "finished",
        "message",
        "outcome",
        "serial",
        "size",
        "started",
        "stream",
    )

    def __init__(self, stream: Stream, message: Message, attempt: int, alone: bool = False):
        self.stream, self.message, self.attempt, self.alone = stream, message, attempt, alone
        self.outcome: Outcome | None = None
        self.started = self.finished = self.deadline = 0.0
        self.serial = next(_serials)
        self.size = message.size

    @property
    def offset(self) -> int:
        """Where its message stands in the log."""
        return self.message.offset


class Run:
    """Hands of one lane to run one after another (or a batch, in one call), by one thread.

    The lock decides who wins when a worker is about to start a hand that the control thread is taking back.
    """

    __slots__ = ("batch", "hands", "lock", "moves_to", "next", "position", "stopped", "stream")

    def __init__(
        self,
        stream: Stream,
        hands: Sequence[Hand],
        batch: bool = False,
        position: int = 0,
        moves_to: int | None = None,
    ):
        self.stream, self.hands, self.batch = stream, hands, batch
        self.position, self.moves_to = position, moves_to  # an atomic batch may move the stored position between these
        self.lock = threading.Lock()
        self.next = 0
        self.stopped = False

    def start_next(self) -> Hand | None:
        """Return the next hand, which is the caller's to run from now on; None when there is none or the run was
        stopped."""
        with self.lock:
            if self.stopped or self.next >= len(self.hands):
                return None
            self.next += 1
            return self.hands[self.next - 1]

    def stop(self) -> Sequence[Hand]:
        """Start no more of it; return the hands that had not been started: they are the caller's to hand back."""
        with self.lock:
            unstarted = () if self.stopped else self.hands[self.next :]
            self.stopped = True
            return unstarted


@dataclass(slots=True)
class Plan:
    """What one settle writes for one stream, in one transaction fenced by its token. Values, never increments."""

    stream: Stream
    position: int
    watermark: int
    claimed: int
    rows: list[RowWrite] = field(default_factory=list)
    deletes: list[int] = field(default_factory=list)
    dead: list[DeadLetter] = field(default_factory=list)
    settled: list[Hand] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    release: bool = False
    ranges: list[StoredRange] = field(default_factory=list)
    taken_up: set[int] = field(default_factory=set)  # of the rows: claimed out of a range, they had none before
