"""The write buffer: what the next plan writes, and the acks that need no row until they have waited long enough."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from sqlqueue.core.effects import EffectWrite
from sqlqueue.core.membership import Member, member_of
from sqlqueue.core.outcomes import ACKED, Outcome
from sqlqueue.core.partition.blocked import KeyRanges
from sqlqueue.core.partition.ordering import Entry
from sqlqueue.core.partition.rows import Rows
from sqlqueue.core.settle_plan import (
    DEAD_MEMBER,
    NOT_IN_FLIGHT,
    Attempt,
    DeadLetter,
    Filtered,
    RowWrite,
    SettledAttempt,
)


class Gathered(NamedTuple):
    """What a plan writes besides the offsets and the ranges."""

    rows: Sequence[RowWrite]
    deletes: Sequence[int]
    dead: Sequence[DeadLetter]
    settled: Sequence[SettledAttempt]
    taken_up: Set[int]
    filtered: int
    members: Mapping[int, Member]
    effects: Sequence[EffectWrite]


class WriteBuffer:
    """What the next plan writes. claimed, watermark: C (unless it is claimed ahead) and W as it writes them; members:
    the messages in memory that belong to a batch, by offset. One is counted in the plan after which the tables say
    "settled" by having no row of it."""

    def __init__(self, claimed: int, watermark: int, rows: Rows, ranges: KeyRanges, members: dict[int, Member]):
        self.claimed, self.watermark = claimed, watermark
        self.rows: dict[int, RowWrite] = {}
        # Above the position, in memory only; announced once stored. None: there is nothing to announce.
        self.acks: dict[int, SettledAttempt | Filtered | None] = {}
        self.awaited: list[int] = []  # offsets of acks that were put there since the last plan, and have a caller
        self.taken_up: set[int] = set()  # claimed out of a blocked range: the next plan writes their first row
        self.dead: list[DeadLetter] = []
        self.settled: list[SettledAttempt] = []
        self.filtered = 0  # how many of what is settled the consumer's filter has left out
        self.effects: list[EffectWrite] = []
        self._rows, self._ranges = rows, ranges
        self._members = members
        self._counted: dict[int, Member] = {}

    @property
    def due(self) -> bool:
        """Whether something is to be written."""
        return bool(self.rows or self.settled or self._rows.has_acked or self._ranges.changed)

    @property
    def only_acks(self) -> bool:
        """Whether all that is to be written is acks that need no row, or have it already (a handler's transaction wrote
        it), and no publisher waits for a reply to one."""
        if self.rows or self.dead or self.effects or self._ranges.changed or self._members:
            return False
        return all(outcome.kind == ACKED and not _is_awaited(attempt, outcome) for attempt, outcome in self.settled)

    def claim(self, offset: int) -> None:
        """Raise C to a message that is dispatched, or to the position."""
        if offset > self.claimed:
            self.claimed = offset

    def passed(self, entries: Iterable[Entry]) -> None:
        """Record that the position has passed acked messages: that stores their acks, unless a range may cover them."""
        ranges, acks, settled = self._ranges or None, self.acks, self.settled
        for entry in entries:
            offset = entry.offset
            kept = ranges is not None and entry.key and ranges.keep(offset, entry.key)
            if entry.row:
                if kept:
                    self._rows.keep_acked(offset)
                continue
            ack = acks.pop(offset)
            if isinstance(ack, SettledAttempt):
                settled.append(ack)
            else:
                self.settle(ack)
            if kept:
                self.rows[offset] = RowWrite(offset, True, NOT_IN_FLIGHT, 1)
            elif self._members:
                self._count(offset)

    def give_row(self, entry: Entry) -> None:
        """Turn an ack that has waited in memory into an acked row."""
        entry.row = True
        self.rows[entry.offset] = RowWrite(entry.offset, True, NOT_IN_FLIGHT, 1)
        self._rows.add_acked(entry.offset)
        self.settle(self.acks.pop(entry.offset))

    def settle(self, settled: SettledAttempt | Filtered | None) -> None:
        """Let the next plan announce what it, or a commit before it, stores."""
        if settled is Filtered.FILTERED:
            self.filtered += 1
        elif settled is not None:
            self.settled.append(settled)

    def answer(self, entries: Mapping[int, Entry]) -> None:
        """Turn those acks into acked rows whose callers wait for the reply: it is stored with them."""
        awaited, self.awaited = self.awaited, []
        for offset in awaited:
            if offset in self.acks:  # else the position has passed it
                self.give_row(entries[offset])

    def take(self, position: int, keeps: bool = False) -> Gathered:
        """Return what to write now, with the position at this offset, and empty the buffer. keeps: without the acked
        rows that it has passed."""
        deletes = [] if keeps else self._rows.take_passed(position)
        for offset in deletes:
            self.rows.pop(offset, None)
            if self._members:
                self._count(offset)
        self.watermark = self._rows.watermark(position)
        gathered = Gathered(
            tuple(self.rows.values()),
            tuple(deletes),
            tuple(self.dead),
            tuple(self.settled),
            frozenset(self.taken_up),
            self.filtered,
            self._counted,
            tuple(self.effects),
        )
        self.rows, self.dead, self.settled, self.taken_up = {}, [], [], set()
        self.filtered, self._counted, self.effects = 0, {}, []
        return gathered

    # -- members of batches -------------------------------------------------------------------------------------------

    def join(self, offset: int, headers: object, *, dead: bool = False) -> None:
        """Remember which batch a message belongs to, if it belongs to one."""
        if (member := member_of(headers)) is not None:
            self._members[offset] = member._replace(dead=True) if dead else member

    def leave(self, offset: int) -> None:
        """Forget a message that is not in memory any more, or was deleted from the log."""
        if self._members:
            self._members.pop(offset, None)

    def mark_of_dead(self, offset: int) -> int:
        """Record that a message is a dead letter; return how its acked row says so."""
        if (member := self._members.get(offset)) is None:
            return NOT_IN_FLIGHT
        self._members[offset] = member._replace(dead=True)
        return DEAD_MEMBER

    def _count(self, offset: int) -> None:
        if (member := self._members.pop(offset, None)) is not None:
            self._counted[offset] = member


def _is_awaited(attempt: Attempt, outcome: Outcome) -> bool:
    """Tell whether the publisher of an acked message waits for the reply to it."""
    if outcome.committed:  # the reply is stored already
        return attempt.message.reply_kept is not None
    return outcome.kept is not None
