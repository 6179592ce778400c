"""The state transitions of messages in memory: dispatched, acked, held with a row, released, blocked behind another,
covered by a blocked range, forgotten. How they come there: see `arrivals`.

Every function changes the state of one message, and leaves all parts consistent. A message at or below
the position is outside the window.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from sqlqueue.core.effects import EffectWrite, owner_of
from sqlqueue.core.outcomes import ACKED, DEAD, LOST, POSTPONED, RELEASED, RETRIED, SUCCESS, Outcome, charged
from sqlqueue.core.partition.key_limit import LimitedQueue
from sqlqueue.core.partition.ordering import BEHIND, HELD, IN_FLIGHT, READY, SETTLED, Entry, OrderingQueue
from sqlqueue.core.settle_plan import (
    HEAVY,
    NOT_IN_FLIGHT,
    TOGETHER,
    Attempt,
    DeadLetter,
    RowWrite,
    SettledAttempt,
)

if TYPE_CHECKING:
    from sqlqueue.core.partition.assigned import AssignedPartition


# -- dispatched and finished --------------------------------------------------------------------------------------


def dispatch(p: AssignedPartition, entry: Entry, deaths: int = 0) -> Attempt:
    """Return an attempt of a message, which is in flight now; the next plan claims it."""
    assert entry.message is not None
    attempt = entry.attempt = Attempt(p.lease, entry.message, entry.count + 1 if entry.row else 1, deaths)
    queues, queue, size = p.queues, entry.queue, entry.size
    if entry.state == READY:
        queues.ready -= 1
        queues.ready_size -= size
        if queues.loaded:
            queues.loaded.pop(entry.offset, None)
    entry.state = IN_FLIGHT
    p.in_flight += 1
    p.in_flight_size += size
    if queue is not None:
        queue.busy += 1
        if isinstance(queue, LimitedQueue):
            queues.started(queue, entry)
    offset, writes = entry.offset, p.writes
    if not entry.row:
        if offset > p.window.position:
            if offset > writes.claimed:
                writes.claimed = offset
            return attempt
        _leave_range(p, entry)
    writes.rows[offset] = RowWrite(
        offset, False, TOGETHER + attempt.deaths, attempt.number, p.options.visibility_timeout
    )
    return attempt


def _leave_range(p: AssignedPartition, entry: Entry) -> None:
    """Count a message out of its blocked range: the plan that claims it writes its row, and raises the range's
    low."""
    p.writes.add_row(entry)
    p.writes.taken_up.add(entry.offset)
    if (one := p.ranges.by_key.get(entry.key)) is not None:
        one.messages -= 1
        p.ranges.touched[one.key] = one


def finish(p: AssignedPartition, attempt: Attempt, outcome: Outcome, now: float) -> bool:
    """Apply the outcome of an attempt; return False, and change nothing, if it was superseded (overrun)."""
    entry = p.entries.get(attempt.message[0])
    if entry is None or entry.attempt is not attempt:
        return False
    entry.attempt = None
    p.in_flight -= 1
    p.in_flight_size -= entry.size
    queue = entry.queue
    if queue is not None:
        queue.busy -= 1
        if isinstance(queue, LimitedQueue):
            p.queues.ended(queue)
    attempt.outcome = outcome
    p.changes += 1
    if outcome is SUCCESS and not entry.row and entry.offset > p.window.position:  # nearly always
        settle(p, entry, SettledAttempt(attempt, outcome), now)
        return True
    kind = outcome.kind
    if kind == ACKED:
        if outcome.effect is not None and not outcome.committed:
            p.writes.effects.append(EffectWrite(p.lease, entry.offset, attempt.number, *outcome.effect))
        _ack(p, entry, attempt, outcome, now)
        return True
    if kind == DEAD:
        dead_letter(p, entry, attempt, outcome, now)
        return True
    if kind == RELEASED:
        if now >= attempt.claimed_until and p.claims_ahead is not None:
            p.claims_ahead.refused(now)
        _release(p, entry, attempt)
    else:
        _hold(p, entry, attempt, outcome, now)
    if entry.queue is not None:
        p.queues.advance(entry.queue, now)
    return True


def _ack(p: AssignedPartition, entry: Entry, attempt: Attempt, outcome: Outcome, now: float) -> None:
    """Settle a message. What is a dead letter, or has an effect, gets an acked row in the same transaction as its copy,
    or as what the effect writes, unless the position passes it there."""
    offset = entry.offset
    if outcome.committed:
        if offset > p.window.position:
            # The handler's transaction wrote an acked row (or, for a batch, moved the position: then there is none,
            # and deleting it later deletes nothing).
            entry.row = True
            p.writes.rows.pop(offset, None)
    elif entry.row or outcome.kind == DEAD or outcome.effect is not None:
        entry.row = True
        p.writes.rows[offset] = RowWrite(offset, True, NOT_IN_FLIGHT, attempt.number, 0.0, outcome.error or None)
    if entry.row:
        p.writes.add_acked_unless_kept(offset, entry.key, p.window.position)
    settle(p, entry, SettledAttempt(attempt, outcome), now)


def dead_letter(p: AssignedPartition, entry: Entry, attempt: Attempt, outcome: Outcome, now: float) -> None:
    """Settle a message with a copy in the dead-letter topic."""
    p.writes.dead.append(DeadLetter(attempt.message, charged(attempt.number, outcome), outcome.error))
    if (owner := owner_of(p.lease.ref.topic)) is not None:
        p.writes.effects.append(EffectWrite(p.lease, entry.offset, attempt.number, owner, p.writes.dead[-1]))
    _ack(p, entry, attempt, outcome, now)


def _hold(p: AssignedPartition, entry: Entry, attempt: Attempt, outcome: Outcome, now: float) -> None:
    """Let a message wait with a row until it is due: it was retried, postponed, or lost."""
    count = attempt.number - 1 if outcome.kind == POSTPONED else attempt.number
    delay = 1.0 if outcome.kind == LOST else outcome.delay
    if not entry.row:
        p.writes.add_row(entry)
    entry.message, entry.count = None, count
    _wait_until_due(p, entry, delay, now, outcome.error or None)
    block(p, entry)
    if outcome.kind in (RETRIED, POSTPONED):
        p.writes.settled.append(SettledAttempt(attempt, outcome))


def hold_back(p: AssignedPartition, entry: Entry, delay: float, now: float) -> None:
    """Let the first ready message of its key wait with a row, uncharged, until the key's rate allows it. Those
    behind it wait with it."""
    p.queues.withdraw(entry)
    if not entry.row:
        if entry.offset <= p.window.position:
            _leave_range(p, entry)
        else:
            p.writes.add_row(entry)
    entry.limited = True
    _wait_until_due(p, entry, delay, now)
    block(p, entry)


def let_go(p: AssignedPartition, entry: Entry, now: float) -> None:
    """Make a message due that was held back: its key has another rate."""
    entry.limited = False
    _wait_until_due(p, entry, 0.0, now)


def _wait_until_due(p: AssignedPartition, entry: Entry, delay: float, now: float, error: str | None = None) -> None:
    p.writes.rows[entry.offset] = RowWrite(entry.offset, False, NOT_IN_FLIGHT, entry.count, delay, error)
    entry.state, entry.due = HELD, now + delay
    p.delays.add(entry)


def _release(p: AssignedPartition, entry: Entry, attempt: Attempt) -> None:
    """Make a message whose attempt did not start ready again, uncharged. One of a key waits if an earlier one does."""
    queue, limited = entry.queue, isinstance(entry.queue, LimitedQueue)
    entry.refused = entry.refused or attempt.claimed_until < math.inf
    if entry.row:
        entry.count = attempt.number - 1
        p.writes.rows[entry.offset] = RowWrite(entry.offset, False, NOT_IN_FLIGHT, entry.count)
    if entry.key and queue is not None and not limited and _is_behind(queue, entry):
        entry.state, entry.message = HELD if entry.row else BEHIND, None
        return
    p.queues.make_ready(entry, attempt.message, outside=entry.row)
    if queue is None:
        p.queues.offer(entry)
    elif limited:
        queue.add(entry)


def _is_behind(queue: OrderingQueue, entry: Entry) -> bool:
    """Tell whether a message has to wait for an earlier one, which has its row."""
    return queue.entries[0].state == HELD if entry.row else queue.blocked_by_row(entry)


# -- waiting behind another ---------------------------------------------------------------------------------------


def claim_with_row(p: AssignedPartition, entry: Entry) -> None:
    """Write a row for a message in flight whose handler is slow, so that the position can pass it."""
    assert entry.attempt is not None
    entry.count = entry.attempt.number
    p.writes.add_row(entry)
    mark, timeout = TOGETHER + entry.attempt.deaths, p.options.visibility_timeout
    p.writes.rows[entry.offset] = RowWrite(entry.offset, False, mark, entry.count, timeout)
    block(p, entry)


def block(p: AssignedPartition, blocking: Entry) -> None:
    """Drop the payloads of the messages behind one that waits with its row, or whose handler is slow: they wait
    with it."""
    queue = blocking.queue
    if queue is None or not blocking.key or isinstance(queue, LimitedQueue):
        return
    behind = islice(queue.entries, queue.entries.index(blocking) + 1, None)
    _drop(p, queue, takewhile(lambda entry: entry.state != BEHIND, behind))


def _drop(p: AssignedPartition, queue: OrderingQueue, entries: Iterable[Entry]) -> None:
    """Drop the payloads of ready messages of a queue, and forget those that its range still covers."""
    first: Entry | None = None
    for entry in [entry for entry in entries if entry.state == READY]:
        p.queues.withdraw(entry)
        if entry.offset <= p.window.position and not entry.row:
            forget(p, entry)
            first = first or entry
    if queue.range is not None and first is not None:
        # Not earlier: what is in flight may be acked before its row is written, and must not be read back then.
        queue.range.begin_again(first.offset - 1)


def block_loaded(p: AssignedPartition) -> None:
    """Block loaded messages that are behind messages in flight: they wait with their rows, or in a blocked
    range."""
    for entry in list(p.queues.loaded.values()):
        queue = entry.queue
        if queue is not None and queue.entries and queue.entries[0].state == IN_FLIGHT:
            block(p, queue.entries[0])


def park(p: AssignedPartition, loaded: bool) -> None:
    """Drop the payloads of what waits in line because its key is at its limit, so that the key's range can cover
    it. loaded: of those outside the window, too, which were loaded for when the key may go on."""
    for queue in list(p.queues.full.values()):
        _drop(p, queue, [entry for entry in queue.entries if loaded or entry.offset > p.window.position])
        for entry in list(queue.again) if loaded else ():
            p.queues.withdraw(entry)
            queue.due.append(entry)
            queue.again.remove(entry)


def cover(p: AssignedPartition, entry: Entry) -> bool:
    """Let the key's blocked range cover a message that waits behind an earlier one of its key, and forget it, so
    that the position can pass it. Return False if it does not wait so."""
    queue = entry.queue
    if not entry.key or entry.state not in (READY, BEHIND) or queue is None or not queue.blocked_by_row(entry):
        return False
    if entry.state == READY:
        p.queues.withdraw(entry)
    forget(p, entry)
    queue.range = p.ranges.extend(entry.key, entry.offset)
    if isinstance(queue, LimitedQueue):
        p.queues.advance(queue, 0.0)
    return True


# -- out of memory ------------------------------------------------------------------------------------------------


def settle(p: AssignedPartition, entry: Entry, settled: SettledAttempt | list[EffectWrite] | None, now: float) -> None:
    """Remove a settled message from its ordering queue, and from memory if the position has passed it. `settled` is
    announced once a row or the position has stored it: an attempt, what effects write of one that the filter has left
    out, or nothing."""
    if entry.state == READY:
        p.queues.withdraw(entry)
    entry.state, entry.message = SETTLED, None
    if entry.mark:
        p.in_doubt.remove(entry)
    offset, passed = entry.offset, entry.offset <= p.window.position
    if p.writes.unsettled:
        p.writes.settle_row(entry)
    if isinstance(settled, SettledAttempt) and settled.outcome.kind == ACKED and entry.size > HEAVY:
        attempt = settled.attempt
        attempt.message = attempt.message._replace(payload=None, body=None)
    if not entry.row and not passed:
        if isinstance(settled, SettledAttempt) and settled.outcome.kept is not None:
            p.writes.awaited.append(offset)
        p.writes.acks[offset] = settled
    else:
        p.writes.settle(settled)
    queue = entry.queue
    if queue is not None:
        if queue.entries and queue.entries[0] is entry:
            queue.entries.popleft()
        else:
            queue.remove(entry)
        if not queue.busy or isinstance(queue, LimitedQueue):
            p.queues.advance(queue, now)
    if passed:
        del p.entries[offset]


def passed(p: AssignedPartition, offsets: list[int]) -> None:
    """Forget the acked ones of these offsets, which the position has passed: that stores their acks."""
    entries = p.entries
    known = [entries[offset] for offset in offsets if offset in entries]
    settled = [entry for entry in known if entry.state == SETTLED]
    p.writes.passed(settled)
    for entry in settled:
        del entries[entry.offset]


def forget(p: AssignedPartition, entry: Entry) -> None:
    """Forget a message that is not ready, and has no row."""
    del p.entries[entry.offset]
    if entry.queue is not None:
        entry.queue.remove(entry)
