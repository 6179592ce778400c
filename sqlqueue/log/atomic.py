"""Atomic settle: the last statements of a handler's own transaction. Its writes and its ack commit together, or not at
all."""

from __future__ import annotations

from django.db import IntegrityError, connections

from sqlqueue.core.plan import Hand, Run
from sqlqueue.core.stream import Address
from sqlqueue.database.dialects import dialect, execute
from sqlqueue.database.fault_numbers import Fault, classify
from sqlqueue.database.guard import Guard
from sqlqueue.exceptions import LeaseLost

# Locks that everybody respects: a settle of the owner, or a change of owner, waits for this transaction's end. A
# locking read also sees the newest row, not that of the snapshot which the handler's first query may have opened.
# Index: the primary key.
FENCE = "SELECT position, {begun} FROM sqlqueue_offset WHERE id = %s AND fencing_token = %s{share}"
FENCE_ALONE = "SELECT position, {begun} FROM sqlqueue_offset WHERE id = %s AND fencing_token = %s{update}"
# Index: the unique (topic, group, partition, priority, offset).
STATE = """
    SELECT acked, in_flight, retry_count FROM sqlqueue_delivery_state WHERE topic = %s AND consumer_group = %s
    AND "partition" = %s AND priority = %s AND message_offset = %s{update}
"""
ACK_ROW = """
    UPDATE sqlqueue_delivery_state SET acked = {true}, in_flight = 0 WHERE topic = %s AND consumer_group = %s
    AND "partition" = %s AND priority = %s AND message_offset = %s
"""
INSERT_ACKED = """
    INSERT INTO sqlqueue_delivery_state
    (topic, consumer_group, "partition", priority, message_offset, acked, in_flight, retry_count) VALUES
"""
IF_NEW = """
    ON CONFLICT ("topic", "consumer_group", "partition", "priority", "message_offset") DO NOTHING
    RETURNING "message_offset"
"""
MOVE = """
    UPDATE sqlqueue_offset SET position = %s, claimed_to = {greatest}(claimed_to, %s), updated_at = {now},
    offset_acked = {least}(COALESCE((SELECT MIN(s.message_offset) - 1 FROM sqlqueue_delivery_state s WHERE s.topic = %s
    AND s.consumer_group = %s AND s."partition" = %s AND s.priority = %s AND s.acked = {false}
    AND s.message_offset <= %s), %s), COALESCE((SELECT MIN(r.low) FROM sqlqueue_blocked_range r WHERE r.topic = %s
    AND r.consumer_group = %s AND r."partition" = %s AND r.priority = %s), %s)) WHERE id = %s AND fencing_token = %s
"""
SETTLED = "the message has been settled, or handed out again, since this attempt began"


def settle_run(alias: str, run: Run, hands: list[Hand], guard: Guard | None = None) -> int | None:
    """Ack these hands in the current transaction; return the new position if they moved it.

    Raises LeaseLost if the token is stale, or a hand is not the message's present attempt, and BrokenTransaction if it
    is not the guard's transaction any more: everything rolls back.
    """
    stream = run.stream
    whole = run.moves_to is not None and len(hands) == len(run.hands)
    fence = FENCE_ALONE if whole else FENCE
    found = execute(alias, fence, (stream.id, stream.token)).fetchone()
    if found is None:
        raise LeaseLost
    position, begun = found
    if guard is not None:
        guard.compare(begun)
    if any(hand.outcome is not None for hand in hands):
        # Overrun, and perhaps written as that already; what is decided from now on waits for this transaction's end.
        raise LeaseLost(SETTLED)
    if whole and run.moves_to is not None and position == run.position:
        _move(alias, run, run.moves_to)
        return run.moves_to
    again = [hand for hand in hands if hand.attempt != 1 or hand.offset <= position]
    fresh = [hand for hand in hands if hand.attempt == 1 and hand.offset > position]
    if not all(_ack_row(alias, stream.address, hand) for hand in again):
        raise LeaseLost(SETTLED)
    while fresh:
        present = _insert_acked(alias, stream.address, fresh)
        fresh = [hand for hand in present if not _ack_row(alias, stream.address, hand)]
    return None


def _move(alias: str, run: Run, to: int) -> None:
    """First attempts without rows, following the position without a gap, up to F: the position says it all."""
    stream, address = run.stream, run.stream.address
    key = (address.topic, address.group, address.partition, address.priority)
    if execute(alias, MOVE, (to, to, *key, to, to, *key, to, stream.id, stream.token)).rowcount != 1:
        raise LeaseLost


def _ack_row(alias: str, address: Address, hand: Hand) -> bool:
    """Ack the message's row, if it has one, in flight with this very attempt; False if it has none."""
    key = (address.topic, address.group, address.partition, address.priority, hand.offset)
    row = execute(alias, STATE, key).fetchone()
    if row is None:
        return False
    acked, in_flight, count = row
    if acked or not in_flight or count != hand.attempt:
        raise LeaseLost(SETTLED)
    execute(alias, ACK_ROW, key)
    return True


def _insert_acked(alias: str, address: Address, hands: list[Hand]) -> list[Hand]:
    """Insert acked rows, those that can be inserted; return the hands of which some have a row already.

    Before any look: at REPEATABLE READ, a locking look for a row that is not there locks the gap where others insert.
    """
    key = (address.topic, address.group, address.partition, address.priority)
    size = dialect(alias).rows_of_one_insert
    present: list[Hand] = []
    for start in range(0, len(hands), size):
        some = hands[start : start + size]
        rows = ", ".join(["(%s, %s, %s, %s, %s, {true}, 0, 1)"] * len(some))
        values = [value for hand in some for value in (*key, hand.offset)]
        if connections[alias].vendor == "mysql":
            try:
                execute(alias, INSERT_ACKED + rows, values)
            except IntegrityError as error:  # all or none
                if classify(error) is not Fault.DUPLICATE:
                    raise
                present += some
        else:
            inserted = {offset for (offset,) in execute(alias, INSERT_ACKED + rows + IF_NEW, values).fetchall()}
            present += [hand for hand in some if hand.offset not in inserted]
    return present


def was_committed(alias: str, run: Run, hands: list[Hand]) -> tuple[int | None, bool]:
    """Tell whether an atomic settle whose commit got no reply came through: (the position if it moved that, whether).

    Takes the offset row's lock, and so waits until that transaction has ended, one way or the other. Raises LeaseLost
    if the token is stale.
    """
    stream, last = run.stream, hands[-1]
    found = execute(alias, FENCE_ALONE, (stream.id, stream.token)).fetchone()
    if found is None:
        raise LeaseLost
    address = stream.address
    key = (address.topic, address.group, address.partition, address.priority, last.offset)
    row = execute(alias, STATE, key).fetchone()
    if row is not None:
        return None, bool(row[0])
    moved = run.moves_to is not None and found[0] >= last.offset
    return (run.moves_to, True) if moved else (None, False)
