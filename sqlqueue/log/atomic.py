"""Atomic settle: the last statements of a handler's own transaction. Its writes and its ack commit together, or not at
all."""

from __future__ import annotations

from collections.abc import Iterable

from sqlqueue.core.effects import EffectWrite, of_headers, with_header, write
from sqlqueue.core.outcomes import COMMITTED, Outcome
from sqlqueue.core.partition.ref import PartitionRef
from sqlqueue.core.settle_plan import Attempt, Execution
from sqlqueue.database.log import Log
from sqlqueue.database.transactions import Guard
from sqlqueue.exceptions import LeaseLost
from sqlqueue.log import fence

# Index: the unique (topic, group, partition, priority, offset).
STATE = """
    SELECT acked, in_flight, retry_count FROM sqlqueue_delivery_state WHERE topic = %s AND consumer_group = %s
    AND "partition" = %s AND priority = %s AND message_offset = %s{update}
"""
ACK_ROW = """
    UPDATE sqlqueue_delivery_state SET acked = {true}, in_flight = 0 WHERE topic = %s AND consumer_group = %s
    AND "partition" = %s AND priority = %s AND message_offset = %s
"""
STATE_KEY = 'topic, consumer_group, "partition", priority, message_offset'
STATE_COLUMNS = f"{STATE_KEY}, acked, in_flight, retry_count"
ACKED_ROW = "(%s, %s, %s, %s, %s, {true}, 0, 1)"
MOVE = """
    UPDATE sqlqueue_offset SET position = %s, claimed_to = {greatest}(claimed_to, %s), updated_at = {now},
    offset_acked = {least}(COALESCE((SELECT MIN(s.message_offset) - 1 FROM sqlqueue_delivery_state s WHERE s.topic = %s
    AND s.consumer_group = %s AND s."partition" = %s AND s.priority = %s AND s.acked = {false}
    AND s.message_offset <= %s), %s), COALESCE((SELECT MIN(r.low) FROM sqlqueue_blocked_range r
    WHERE r.topic = %s AND r.consumer_group = %s AND r."partition" = %s AND r.priority = %s), %s)) WHERE {fence}
"""
SETTLED = "the message has been settled, or dispatched again, since this attempt began"


class Superseded(LeaseLost):
    """One of the attempts has an outcome already; the lease is held."""

    def __init__(self) -> None:
        super().__init__(SETTLED)


def settle_execution(log: Log, execution: Execution, attempts: list[Attempt], guard: Guard | None = None) -> int | None:
    """Ack these attempts in the current transaction, and write the effects of their messages; return the new position
    if that moved it.

    Raises LeaseLost if the token is stale or an attempt was superseded, and BrokenTransaction if the guard's
    transaction has ended: then everything rolls back.
    """
    moved_to = _ack(log, execution, attempts, guard)
    if with_header():
        write(log, committed_effects((attempt, COMMITTED) for attempt in attempts))
    return moved_to


def committed_effects(settled: Iterable[tuple[Attempt, Outcome]]) -> list[EffectWrite]:
    """Return what handlers' own transactions write of the effects of their messages, by the outcomes of these."""
    return [
        EffectWrite(attempt.lease, attempt.offset, attempt.number, effect, True, attempt.message.headers)
        for attempt, outcome in settled
        if outcome.committed
        for effect in of_headers(attempt.message.headers)
    ]


def _ack(log: Log, execution: Execution, attempts: list[Attempt], guard: Guard | None) -> int | None:
    lease = execution.lease
    to = execution.move_for(attempts)
    # A settle of the owner, and a change of owner, wait for this transaction's end.
    found = fence.lock(log, lease, shared=to is None)
    if found is None:
        raise LeaseLost
    position, begun = found
    if guard is not None:
        guard.compare(begun)
    if any(attempt.outcome is not None for attempt in attempts):
        # It overran, and that outcome may be written already; what is decided from now on waits for this transaction's
        # end.
        raise Superseded
    if to is not None and position == execution.position:
        _move(log, execution, to)
        return to
    again = [attempt for attempt in attempts if attempt.number != 1 or attempt.offset <= position]
    fresh = [attempt for attempt in attempts if attempt.number == 1 and attempt.offset > position]
    if not all(_ack_row(log, lease.ref, attempt) for attempt in again):
        raise Superseded
    while fresh:
        present = _insert_acked(log, lease.ref, fresh)
        fresh = [attempt for attempt in present if not _ack_row(log, lease.ref, attempt)]
    return None


def _move(log: Log, execution: Execution, to: int) -> None:
    """Move the stored position to ack first attempts without rows that follow it without a gap, up to F
    (docs/protocol.md)."""
    lease, ref = execution.lease, execution.lease.ref
    key = (ref.topic, ref.group, ref.partition, ref.priority)
    if not fence.update(log, MOVE, (to, to, *key, to, to, *key, to), lease):
        raise LeaseLost


def _ack_row(log: Log, ref: PartitionRef, attempt: Attempt) -> bool:
    """Ack the message's row; return False if it has none. Raises LeaseLost unless the row is in flight with this
    attempt."""
    key = (ref.topic, ref.group, ref.partition, ref.priority, attempt.offset)
    row = log.execute(STATE, key).fetchone()
    if row is None:
        return False
    acked, in_flight, count = row
    if acked or not in_flight or count != attempt.number:
        raise Superseded
    log.execute(ACK_ROW, key)
    return True


def _insert_acked(log: Log, ref: PartitionRef, attempts: list[Attempt]) -> list[Attempt]:
    """Insert the acked rows that can be inserted; return the attempts that were not, of which some have a row already.

    It does not look first: at REPEATABLE READ, a locking read of a row that does not exist locks the gap where others
    insert.
    """
    key = (ref.topic, ref.group, ref.partition, ref.priority)
    size = log.dialect.rows_of_one_insert
    present: list[Attempt] = []
    for start in range(0, len(attempts), size):
        some = attempts[start : start + size]
        rows = {attempt.offset: (*key, attempt.offset) for attempt in some}
        into = f"sqlqueue_delivery_state ({STATE_COLUMNS})"
        inserted = log.insert_missing(into, ACKED_ROW, rows, STATE_KEY, "message_offset")
        present += [attempt for attempt in some if attempt.offset not in inserted]
    return present


def was_committed(log: Log, execution: Execution, attempts: list[Attempt]) -> tuple[int | None, bool]:
    """Return whether an atomic settle whose reply was lost has committed, as (the position if it moved that, whether).

    Takes the offset row's lock, and so waits until that transaction has ended. Raises LeaseLost
    if the token is stale.
    """
    lease, last = execution.lease, attempts[-1]
    found = fence.lock(log, lease)
    if found is None:
        raise LeaseLost
    ref = lease.ref
    key = (ref.topic, ref.group, ref.partition, ref.priority, last.offset)
    row = log.execute(STATE, key).fetchone()
    if row is not None:
        return None, bool(row[0])
    moved = execution.move_for(attempts) is not None and found[0] >= last.offset
    return (last.offset, True) if moved else (None, False)
