"""What a settle writes of a partition, and how far its position moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlqueue.core.outcomes import RELEASED, Outcome
from sqlqueue.core.partition import changes
from sqlqueue.core.partition.ordering import IN_FLIGHT, SETTLED
from sqlqueue.core.partition.writes import ClaimAhead
from sqlqueue.core.settle_plan import Execution, SettlePlan

if TYPE_CHECKING:
    from sqlqueue.core.partition.assigned import AssignedPartition


def plan(
    p: AssignedPartition, now: float, flush_after: float, executions: list[Execution], linger: float = 0.0, end: int = 0
) -> SettlePlan | None:
    """Return what to write now, with the claims of the executions that were chosen; None if there is nothing: then
    these are claimed already, and may start at once. flush_after: for so many seconds an ack waits in memory at
    most; linger: for so many a position, or acks that are stored, may wait for a plan with more; end: about where
    the log will end soon, so that the partition may be claimed ahead up to there; 0: it may not."""
    writes, before = p.writes, p.window.position
    walk(p)
    if writes.waits_since is not None and now - writes.waits_since >= flush_after:
        _flush(p)
        writes.waits_since = now  # the next flush is due after the same time
    if writes.awaited:
        writes.answer(p.entries)
    moved = p.window.position > before
    ahead = _claims_to(p, end, now) if end or p.claims_ahead is not None else 0
    if executions and p.claims_ahead is not None:
        p.claims_ahead.dispatched(now)
    written = None
    if not _may_wait(p, now, moved, executions, linger):
        written = _written(p, now, moved, executions, linger, ahead)
    elif p.claims_ahead is not None:  # what is claimed already may start, until that claim ends
        for attempt in [attempt for execution in executions for attempt in execution.attempts]:
            attempt.claimed_until = p.claims_ahead.until
    # The messages behind a slow one may fill the memory; once the slow one has a row, a blocked range can cover them.
    if not (writes.acks or p.has_no_room or (p.queues.full and p.queues.holding)):
        writes.waits_since = None
    elif writes.waits_since is None or moved:
        writes.waits_since = now
    return written


def _claims_to(p: AssignedPartition, end: int, now: float) -> int:
    """Return up to where a plan may claim ahead, 0 for not at all: only if nothing of the log waits but what is in
    flight, so that the next messages can start when they are read."""
    waits = p.queues.ready or p.window.more or p.window.late or p.in_doubt.entries or p.ranges.by_key
    # Atomic handlers write rows; of what a filter leaves out a takeover would write some, too.
    if waits or p.queues.limits_keys or p.options.atomic or p.sieve is not None:
        end = 0
    if p.claims_ahead is None:
        p.claims_ahead = ClaimAhead()
    return p.claims_ahead.target(end, now)


def _written(
    p: AssignedPartition, now: float, moved: bool, executions: list[Execution], linger: float, ahead: int
) -> SettlePlan | None:
    """Return a plan, None if it is empty."""
    writes = p.writes
    waited = writes.lingers_since is not None
    # With claims alone, an offset row is all that is written, in one statement: the acked rows that the position has
    # passed are left for a later plan.
    keeps = bool(executions and writes.acked) and writes.acked[0] <= p.window.position and _waits(p, now, linger)
    if not keeps:
        writes.lingers_since = None
    falls_back = not executions and p.claims_ahead is not None and p.claims_ahead.falls_back(writes.claimed, now)
    plan = _make_plan(p, executions, now, ahead=0 if falls_back else ahead, falls_back=falls_back, keeps=keeps)
    changed = plan.rows or plan.deletes or plan.dead or plan.settled or plan.ranges or plan.filtered or plan.effects
    return plan if changed or executions or falls_back or moved or waited else None


def _may_wait(p: AssignedPartition, now: float, moved: bool, executions: list[Execution], linger: float) -> bool:
    """Tell whether nothing is written now: only a position or acks wait, and claims that are stored already."""
    if executions:
        if p.claims_ahead is None or not p.claims_ahead.covers(executions, now):
            return False
        if any(p.entries[attempt.offset].refused for each in executions for attempt in each.attempts):
            return False
    if moved or p.writes.lingers_since is not None or p.writes.settled:
        return _waits(p, now, linger)
    return bool(executions) and p.options.keep_results is None and p.writes.only_acks


def _waits(p: AssignedPartition, now: float, linger: float) -> bool:
    """Tell whether the position is all that is to be written, or acks are that it has passed or a handler's transaction
    has stored, and waits."""
    writes = p.writes
    if writes.lingers_since is None:
        writes.lingers_since = now
    if _has_waited(writes.lingers_since, now, linger) or p.options.keep_results is not None:
        return False
    return writes.only_acks


def was_written(p: AssignedPartition, plan: SettlePlan, began: float) -> None:
    """Record that a plan is stored; began: monotonic seconds, before it was sent."""
    if p.claims_ahead is not None:
        p.claims_ahead.was_written(plan, began)


def release_plan(p: AssignedPartition, now: float) -> SettlePlan:
    """Return what to write when the lease is released: acks in memory become rows, other attempts are released."""
    for entry in list(p.entries.values()):
        if entry.attempt is not None:
            changes.finish(p, entry.attempt, Outcome(RELEASED), now)
    walk(p)
    _flush(p)
    plan = _make_plan(p, [], now, release=True)
    p.lease.lost = True
    return plan


def walk(p: AssignedPartition) -> None:
    """Move P to the highest p <= F such that every message read in (P, p] is acked, has a row, or waits behind an
    earlier one of its key, whose blocked range then covers it."""
    entries, final, target = p.entries, p.window.final, p.window.position
    clear = final  # what the filter has left out up to there is not remembered, and nothing else is before it
    for offset in p.window.offsets:
        if offset > final:
            break
        entry = entries[offset]
        if entry.state != SETTLED and not entry.row and not changes.cover(p, entry):
            clear = offset - 1
            break
        target = offset
    else:
        if target > p.window.position:
            target = max(target, final)
    if p.sieve is not None and p.sieve.left_out:
        target = max(target, clear)
    if target > p.window.position:
        move(p, target)


def move(p: AssignedPartition, target: int) -> None:
    """Move P to an offset."""
    changes.passed(p, p.window.move(target))
    p.writes.claimed = max(p.writes.claimed, target)
    if p.sieve is not None:
        p.writes.filtered += p.sieve.passed(target)


def _flush(p: AssignedPartition) -> None:
    """Write rows for acks that have waited long enough in memory.

    Messages in flight that hold the position back get a row, so that it can move on; acks beyond it become acked
    rows. If there is no room, every message in flight gets a row, so that the messages behind it in its ordering
    queue can leave the memory."""
    entries, full = p.entries, not p.room
    for offset in p.window.offsets:
        if offset > p.window.final and not full:
            break
        if entries[offset].state == IN_FLIGHT and not entries[offset].row:
            changes.claim_with_row(p, entries[offset])
    changes.park(p, full)
    if full:
        changes.block_loaded(p)
    walk(p)
    for offset in sorted(p.writes.acks):
        p.writes.give_row(entries[offset])


def _make_plan(
    p: AssignedPartition,
    executions: list[Execution],
    now: float,
    release: bool = False,
    ahead: int = 0,
    falls_back: bool = False,
    keeps: bool = False,
) -> SettlePlan:
    """Return what to write now, and begin the next plan. keeps: without the acked rows that the position has passed."""
    writes, position = p.writes, p.window.position
    ranges, released = p.queues.raise_lows(now) if p.ranges.touched else ((), ())
    for offset in released:
        writes.add_acked(offset)
    passed = bool(writes.acked) and writes.acked[0] <= position
    deletes = writes.take_passed(position) if passed and not keeps else ()
    writes.raise_watermark(position)
    writes.add_effects()
    plan = SettlePlan(
        p.lease,
        position,
        writes.watermark,
        max(writes.claimed, ahead),
        rows=tuple(writes.rows.values()),
        deletes=tuple(deletes),
        dead=tuple(writes.dead),
        settled=tuple(writes.settled),
        executions=tuple(executions),
        ranges=tuple(ranges),
        taken_up=writes.taken_up,
        atomic=p.options.atomic,
        release=release,
        keep_results=p.options.keep_results,
        filtered=writes.filtered,
        effects=tuple(writes.effects),
        ahead=ahead > writes.claimed,
        falls_back=falls_back,
    )
    writes.clear()
    return plan


def _has_waited(since: float, now: float, linger: float) -> bool:
    """Tell whether a position has waited as long, or half as long again: all that wait end it at the same moments,
    so that one statement writes them."""
    if linger <= 0:
        return True
    return now // (linger / 2) - since // (linger / 2) >= 3
