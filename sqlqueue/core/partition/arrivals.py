"""How messages come into memory: received from a read, recalled by their rows, taken up from a blocked range, loaded.
Or they are found to be gone.

A message at or below the position is outside the window.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlqueue.core.partition import changes
from sqlqueue.core.partition.ordering import BEHIND, HELD, READY, SETTLED, Entry, OrderingQueue
from sqlqueue.core.settle_plan import NOT_IN_FLIGHT, FetchedMessage, Filtered, RowWrite, StoredRow, sizes_of

if TYPE_CHECKING:
    from sqlqueue.core.partition.assigned import AssignedPartition


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
            p.writes.acks[offset] = Filtered.of(p.lease, message)
    p.window.add_all(added)


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
        p.window.recall(row.offset)
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
        p.writes.effects += Filtered.of(p.lease, message).effects


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
    p.delays.was_loaded(offset)
    if entry is None or entry.state != HELD:
        return
    entry.limited = False
    if row is None or row.acked or message is None:
        _settle_gone(p, entry, row, now)
        return
    if not p.wants(message):  # a former owner had another filter, or had not settled all that it read
        _settle_gone(p, entry, row, now, Filtered.of(p.lease, message))
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
    p: AssignedPartition, entry: Entry, row: StoredRow | None, now: float, settled: Filtered | None = None
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
