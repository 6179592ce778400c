"""How messages come into memory: received from a read, recalled by their rows, taken up from a blocked range, loaded.
Or they are found to be gone, or the consumer's filter leaves them out: such a one is acked when it is read, and counted
once the position has passed it.

A message at or below the position is outside the window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from sqlqueue.core.effects import EffectWrite, of_headers
from sqlqueue.core.filters import Filter, Row
from sqlqueue.core.partition import changes
from sqlqueue.core.partition.ordering import BEHIND, HELD, READY, SETTLED, Entry, OrderingQueue
from sqlqueue.core.partition.window import Found
from sqlqueue.core.settle_plan import NOT_IN_FLIGHT, FetchedMessage, RowWrite, StoredRow, effects_of_filtered, sizes_of

if TYPE_CHECKING:
    from sqlqueue.core.partition.assigned import AssignedPartition
FIELDS: Final = len(FetchedMessage._fields)
HEADERS: Final = FetchedMessage._fields.index("headers")
TARGET: Final = FetchedMessage._fields.index("target_group")
RARE: Final = 8  # one of so many matches, or fewer: to read the others whole costs more than a statement for those
ENOUGH: Final = 20  # messages, the latest read before: fewer say nothing, and cost nothing


def receive(p: AssignedPartition, messages: Sequence[FetchedMessage], wanted: bool | None = None) -> None:
    """Add messages that were read, without those that the position has passed or that are in memory already. wanted:
    what the filter has said of them; None: it is asked."""
    entries, receive, position = p.entries, p.queues.receive, p.window.position
    if wanted is None and p.sieve is None:
        wanted = True
    added: list[int] = []
    for message, size in zip(messages, sizes_of(messages)):
        offset, target = message[0], message[6]
        if offset <= position or offset in entries:
            continue
        added.append(offset)
        if target and target != p.ref.group:  # there is nothing to dispatch
            entries[offset] = Entry(offset, None, SETTLED, None)
            p.writes.acks[offset] = None
        elif wanted or (wanted is None and p.wants(message)):
            entries[offset] = receive(message, size)
        else:
            entries[offset] = Entry(offset, None, SETTLED, None)
            p.writes.acks[offset] = effects_of_filtered(p.lease, message)
    p.window.add(added)


def recall(p: AssignedPartition, row: StoredRow, now: float) -> None:
    """Add a stored row. One that is acked and at or below the position needs no entry."""
    if row.acked and row.offset <= p.window.position:
        p.writes.add_acked_unless_kept(row.offset, row.key, p.window.position)
        return
    queue = None if row.acked else p.queues.queue_of(row.key)
    entry = Entry(row.offset, queue, HELD, None, p.queues.covering_key(row.key))
    entry.count, entry.mark, entry.due = row.retry_count, row.in_flight, now + row.remaining
    p.entries[row.offset] = entry
    if row.offset > p.window.position:
        p.window.add([row.offset])
        p.window.cursor = max(p.window.cursor, row.offset)  # the former owner has read up to there
    if row.acked:
        entry.row, entry.state = True, SETTLED
        p.writes.add_acked(row.offset)
        return
    if queue is not None:
        queue.add(entry)
    p.writes.add_row(entry)
    if row.in_flight:
        entry.due = now
        p.in_doubt.add(entry)
    else:
        p.delays.add(entry)


def take_up(
    p: AssignedPartition, queue: OrderingQueue, row: StoredRow | None, message: FetchedMessage, now: float
) -> None:
    """Add the next message of a blocked range. It gets its row when it is dispatched, unless an operator has
    written one. What was settled since the last plan has the row that the next one writes."""
    if (written := p.writes.rows.get(message.offset)) is not None:
        row = StoredRow(message.offset, written.acked, written.in_flight, written.retry_count, 0.0, queue.name)
    if row is not None:
        recall(p, row._replace(key=queue.name), now)
    elif message.target_group in ("", p.ref.group) and p.wants(message):
        entry = p.entries[message.offset] = Entry(message.offset, queue, BEHIND, None, queue.name)
        p.queues.make_ready(entry, message, outside=True)
        queue.add(entry)
    elif message.target_group in ("", p.ref.group):  # left out by the filter
        p.writes.effects += effects_of_filtered(p.lease, message)


def load_blocked(
    p: AssignedPartition, entry: Entry, row: StoredRow | None, message: FetchedMessage | None, now: float
) -> None:
    """Load a message that was blocked: it is now the first of its ordering queue, or follows the first."""
    if message is None:
        changes.settle(p, entry, None, now)
    elif row is None:
        p.queues.make_ready(entry, message)
    else:  # an operator has written it
        changes.forget(p, entry)
        recall(p, row, now)


def load(p: AssignedPartition, offset: int, row: StoredRow | None, message: FetchedMessage | None, now: float) -> None:
    """Add what the database holds of a row that was due or in doubt: its present values, and its message."""
    p.changes += 1
    if message is not None:
        p.budget.weigh([message])
    entry = p.entries.get(offset)
    p.delays.due.pop(offset, None)
    if entry is None or entry.state != HELD:
        return
    entry.limited = False
    if row is None or row.acked or message is None:
        _settle_gone(p, entry, row, now)
        return
    if not p.wants(message):  # a former owner had another filter, or had not settled all that it read
        _settle_gone(p, entry, row, now, effects_of_filtered(p.lease, message))
        return
    entry.count = row.retry_count
    if entry.mark:
        entry.mark = row.in_flight
        if not entry.mark:
            p.in_doubt.remove(entry)
    if entry.mark:
        entry.message, entry.size = message, message.size
        return
    if row.remaining > 0:
        entry.due = now + row.remaining
        p.delays.add(entry)
    else:
        p.queues.came_due(entry, message)


def _settle_gone(
    p: AssignedPartition, entry: Entry, row: StoredRow | None, now: float, settled: list[EffectWrite] | None = None
) -> None:
    """Settle a message that was acked by a commit whose reply was lost, or deleted by an operator, or is left out
    by the filter."""
    entry.row = row is not None
    if row is not None:
        p.writes.add_acked_unless_kept(entry.offset, entry.key, p.window.position)
        if not row.acked:
            p.writes.rows[entry.offset] = RowWrite(entry.offset, True, NOT_IN_FLIGHT, row.retry_count)
    changes.settle(p, entry, settled, now)


def vanish(p: AssignedPartition, offset: int, now: float) -> None:
    """Settle a message that was deleted from the log: there is nothing to dispatch."""
    entry = p.entries[offset]
    if entry.state in (READY, BEHIND) and not entry.row:
        changes.settle(p, entry, None, now)


class Sieve:
    """The filter of one assigned partition. left_out: what was left out and P has not passed: up to where, and how many
    messages, by each read."""

    def __init__(self, group: str, where: Filter):
        self.wants = where.matches
        self._where = where
        self._targets = ("", group)
        self.left_out: deque[tuple[int, int]] = deque()
        self._matched = self._seen = 0  # of the latest messages; each read halves what those before it count for

    @property
    def sifts(self) -> bool:
        """Whether it leaves out nearly all, so that only what matches is to be read whole."""
        return self._seen >= ENOUGH and self._matched * RARE <= self._seen

    def take(
        self, messages: Sequence[FetchedMessage], horizon: int, remembered: Container[int]
    ) -> Sequence[FetchedMessage]:
        """Return what is to be received of messages that were read whole: what matches, and what has to be
        remembered."""
        matching = self._where.select(messages)
        self._note(len(matching), len(messages))
        if len(matching) == len(messages):
            return messages
        chosen = {message[0] for message in matching}
        others = [message for message in messages if message[0] not in chosen] if chosen else messages
        return sorted([*matching, *self._leave_out(others, horizon, remembered)], key=itemgetter(0))

    def take_sifted(self, found: Found, horizon: int, remembered: Container[int]) -> Sequence[FetchedMessage]:
        """Return what is to be received besides what matches, of a read that sifts."""
        self._note(len(found.messages) + len(found.gone), found.total)
        rows = self._leave_out(found.left_out, horizon, remembered)
        return [FetchedMessage._make(row[:FIELDS]) for row in rows]

    def _note(self, matched: int, seen: int) -> None:
        if seen:
            self._matched, self._seen = self._matched // 2 + matched, self._seen // 2 + seen

    def _leave_out(self, rows: Sequence[Row], horizon: int, remembered: Container[int]) -> list[Row]:
        """Leave out messages that do not match, and return those that have to be remembered. At or below the horizon
        they are not, but for those that have effects: F is there once the read is recorded, and nothing
        but P has to pass them. A message for another group is none of the filter's."""
        targets = self._targets
        kept = [
            row
            for row in rows
            if row[0] > horizon
            or row[TARGET] not in targets
            or row[0] in remembered
            or (row[HEADERS] and of_headers(row[HEADERS]))
        ]
        if count := len(rows) - len(kept):
            self.left_out.append((min(rows[-1][0], horizon), count))
        return kept

    def passed(self, position: int) -> int:
        """Return how many messages the position has now passed that were left out."""
        count = 0
        while self.left_out and self.left_out[0][0] <= position:
            count += self.left_out.popleft()[1]
        return count
