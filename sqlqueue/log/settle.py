"""Settle: store outcomes, positions and the next claims of many partitions in one transaction, each fenced by its
token."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from sqlqueue.core import effects
from sqlqueue.core.codec import as_text
from sqlqueue.core.logfmt import logfmt
from sqlqueue.core.outcomes import ACKED, POSTPONED, Outcome, fingerprint
from sqlqueue.core.partition.ref import PartitionRef
from sqlqueue.core.settle_plan import RowWrite, SettledAttempt, SettlePlan, SettleResult
from sqlqueue.database import retries
from sqlqueue.database.gate import insert_failed
from sqlqueue.database.insert_sql import FailedRow, LogRow, Stored
from sqlqueue.database.log import Log
from sqlqueue.database.sizes import LIGHT, delete_all, insert_all, size
from sqlqueue.log import fence, topics
from sqlqueue.log.results import are_asked_for, delete_progress, write_results

logger = logging.getLogger("sqlqueue")

# Lowers C (docs/protocol.md): to P with an owner's last settle, to what is dispatched where it was claimed ahead.
LOWER = """
    UPDATE sqlqueue_offset SET position = {greatest}(position, %s), offset_acked = {greatest}(offset_acked, %s),
    claimed_to = {greatest}(position, %s), updated_at = {now} WHERE {fence}
"""
# Index: the unique (topic, group, partition, priority, offset).
STATES = """
    SELECT message_offset, acked FROM sqlqueue_delivery_state WHERE topic = %s AND consumer_group = %s
    AND "partition" = %s AND priority = %s AND message_offset IN ({marks}){update}
"""
ROW_COLUMNS = (
    'consumer_group, topic, "partition", priority, message_offset,'
    " in_flight, retry_count, last_error, invisible_until, acked"
)
ROW = "(%s, %s, %s, %s, %s, %s, %s, %s, {later}, %s)"
ROW_KEY = 'topic, consumer_group, "partition", priority, message_offset'
ROW_UPDATES = {
    "in_flight": "{new:in_flight}",
    "retry_count": "{new:retry_count}",
    "last_error": "COALESCE({new:last_error}, sqlqueue_delivery_state.last_error)",
    "invisible_until": "{new:invisible_until}",
    "acked": "{new:acked}",
}
RANGE_KEY = 'topic, consumer_group, "partition", priority, partition_key'
RANGE = "(%s, %s, %s, %s, %s, %s, %s, %s)"
RANGE_UPDATES = {name: "{new:" + name + "}" for name in ("low", "high", "messages")}
# An acked row stays acked: an atomic settle whose reply was lost has said so.
NOT_ACKED = "sqlqueue_delivery_state.acked = {false}"
RECEIPT_COLUMNS = (
    'consumer_group, topic, "partition", message_offset, outcome, attempts, worker, serial, started_at, finished_at'
)
RECEIPT = "(%s, %s, %s, %s, %s, %s, %s, %s, {earlier}, {earlier})"
CHUNK = 500


def settle(
    log: Log, plans: Sequence[SettlePlan], worker: str, histories: dict[str, str], now: float
) -> list[SettleResult]:
    """Execute plans; return their results in the same order. A plan whose token is stale changes nothing.

    worker: the subscriber's name, for receipts; histories: topic to its `history`; now: the process's monotonic
    seconds.
    It may be run again after an unknown outcome: every value is absolute.
    """
    if all(_is_plain(plan, histories) for plan in plans) and not log.connection.in_atomic_block:
        moved = retries.run_statement(log, _advance_all, log, plans)
        return [_result(plan, plan if plan in moved else None) for plan in plans]
    return [_result(*each) for each in retries.run(log, _settle, log, plans, worker, histories, now)]


def _is_plain(plan: SettlePlan, histories: dict[str, str]) -> bool:
    receipts = plan.settled and histories.get(plan.lease.ref.topic) == "all"
    results = plan.settled and (plan.lease.stored_progress or are_asked_for(plan))
    written = plan.rows or plan.deletes or plan.ranges or plan.dead or plan.effects
    # What lowers C needs a transaction: a statement that a lost connection left behind could run after the next claim.
    return not (plan.falls_back or written or receipts or results)


def _result(given: SettlePlan, written: SettlePlan | None) -> SettleResult:
    if written is None:
        return SettleResult(given, (), (), stale=True)
    return SettleResult(given, written.settled, written.dead, effects=written.effects)


def _settle(
    log: Log, plans: Sequence[SettlePlan], worker: str, histories: dict[str, str], now: float
) -> list[tuple[SettlePlan, SettlePlan | None]]:
    """Return each plan that was given, and how it was written; None: its token was stale."""
    written = _fenced(log, plans)
    for plan in written.values():
        delete_all(log, "sqlqueue_delivery_state", "message_offset", plan.deletes, _columns(plan.lease.ref))
    _write_rows(log, written.values())
    _write_ranges(log, written.values())
    for plan in written.values():
        _write_dead_letters(log, plan)
    effects.write(log, [each for plan in written.values() for each in plan.effects])
    _write_receipts(log, written.values(), worker, histories, now)
    write_results(log, written.values(), now)
    delete_progress(log, written.values())
    return [(plan, written.get(plan)) for plan in plans]


def _fenced(log: Log, plans: Sequence[SettlePlan]) -> dict[SettlePlan, SettlePlan]:
    """Write the offset rows; return the plans as they are written, by those that were given, without stale ones."""
    if not any(map(_may_be_committed, plans)):
        return {plan: plan for plan in _advance_all(log, plans)}
    written: dict[SettlePlan, SettlePlan] = {}
    for given in sorted(plans, key=_lock_order):
        plan = given.without(_committed_already(log, given)) if _may_be_committed(given) else given
        if _advance(log, plan):
            written[given] = plan
    return written


def _may_be_committed(plan: SettlePlan) -> bool:
    return plan.atomic and bool(plan.dead or any(not row.acked for row in plan.rows))


def _lock_order(plan: SettlePlan) -> tuple[object, ...]:
    """Return the sort key by which acquiring and revoking lock offset rows too: that of their unique index."""
    ref = plan.lease.ref
    return ref.topic, ref.group, ref.partition, ref.priority


def _committed_already(log: Log, plan: SettlePlan) -> set[int]:
    """Return the offsets of messages that an atomic handler's own transaction has settled while their timeout was being
    applied.

    A batch may have moved the stored position past messages without a row; other messages have an acked row.
    """
    found = fence.lock(log, plan.lease)
    if found is None:
        return set()  # stale: nothing will be written
    ref = plan.lease.ref
    stream = (ref.topic, ref.group, ref.partition, ref.priority)
    claimed_first = plan.taken_up  # at or below the position without a row, and yet not settled
    decided = {row.offset for row in plan.rows if not row.acked} | {dead.message.offset for dead in plan.dead}
    offsets = sorted(decided - claimed_first)
    settled = {offset for offset in offsets if offset <= found[0]}
    for start in range(0, len(offsets), CHUNK):
        some = offsets[start : start + CHUNK]
        text = STATES.replace("{marks}", ", ".join(["%s"] * len(some)))
        for offset, acked in log.execute(text, (*stream, *some)).fetchall():
            (settled.add if acked else settled.discard)(offset)
    return settled


def _advance(log: Log, plan: SettlePlan) -> bool:
    """Write the offset row, which is all that a batch without failures needs; return False if the token is stale."""
    if plan.release or plan.falls_back:
        claimed = plan.position if plan.release else plan.claimed
        return fence.update(log, LOWER, (plan.position, plan.watermark, claimed), plan.lease)
    return fence.advance(log, plan.lease, plan.position, plan.watermark, plan.claimed)


def _advance_all(log: Log, plans: Sequence[SettlePlan]) -> list[SettlePlan]:
    """Do so for several plans, together where nothing is released; return those whose tokens are not stale."""
    ordered = sorted(plans, key=_lock_order)
    if any(plan.release or plan.falls_back for plan in ordered):
        return [plan for plan in ordered if _advance(log, plan)]
    moves = [fence.Move(plan.lease, plan.position, plan.watermark, plan.claimed) for plan in ordered]
    return [plan for plan, moved in zip(ordered, fence.advance_all(log, moves)) if moved]


def _columns(ref: PartitionRef) -> dict[str, object]:
    """Return the columns of the rows of a partition, and what they have in them."""
    return {"topic": ref.topic, "consumer_group": ref.group, "partition": ref.partition, "priority": ref.priority}


def _write_rows(log: Log, plans: Iterable[SettlePlan]) -> None:
    rows = [_row_values(plan.lease.ref, row) for plan in plans for row in plan.rows]
    upsert = log.dialect.upsert(ROW_KEY, ROW_UPDATES, NOT_ACKED)
    insert_all(log, f"sqlqueue_delivery_state ({ROW_COLUMNS})", ROW, upsert, rows, CHUNK)


def _row_values(ref: PartitionRef, row: RowWrite) -> tuple[object, ...]:
    stream = (ref.group, ref.topic, ref.partition, ref.priority)
    delay = round(row.delay * 1_000_000)
    return (*stream, row.offset, row.in_flight, row.retry_count, row.error, delay, row.acked)


def _write_ranges(log: Log, plans: Iterable[SettlePlan]) -> None:
    """Store the blocked ranges that plans have changed, and delete those that are used up."""
    stored: list[tuple[object, ...]] = []
    for plan in plans:
        columns = _columns(plan.lease.ref)
        stored += [(*columns.values(), *one) for one in plan.ranges if one.low < one.high]
        used_up = [one.key for one in plan.ranges if one.low >= one.high]
        delete_all(log, "sqlqueue_blocked_range", "partition_key", used_up, columns)
    into, upsert = (
        f"sqlqueue_blocked_range ({RANGE_KEY}, low, high, messages)",
        log.dialect.upsert(RANGE_KEY, RANGE_UPDATES),
    )
    insert_all(log, into, RANGE, upsert, stored, CHUNK)


def _write_dead_letters(log: Log, plan: SettlePlan) -> None:
    """Copy dead letters to the dead-letter topic, in the transaction that settles them."""
    if not plan.dead:
        return
    ref = plan.lease.ref
    dead_letter_topic = topics.dead_letters(log, ref.topic)
    for message, attempts, error in plan.dead:
        copy_id = f"{ref.group}:{message.offset}"
        payload, headers = as_text(message.payload), as_text(message.headers)
        partition = ref.partition % dead_letter_topic.partitions
        row = LogRow(dead_letter_topic.name, partition, 0, message.key, copy_id, payload or "null", headers, "")
        if message.body is not None or size(row) > LIGHT:  # with its error it may be more than one packet takes
            row = row._replace(payload=Stored("sqlqueue_message", "offset", message.offset), headers=None)
        failed = FailedRow(attempts, error, ref.topic, message.offset, ref.group, fingerprint(error))
        if not insert_failed(log, row, failed):  # an operator has discarded it, or its replay has begun
            logger.warning(logfmt("dead_letter_gone", topic=ref.topic, group=ref.group, offset=message.offset))


def _write_receipts(log: Log, plans: Iterable[SettlePlan], worker: str, histories: dict[str, str], now: float) -> None:
    rows = [
        _receipt_values(plan.lease.ref, settled, worker, now)
        for plan in plans
        for settled in plan.settled
        if _wants_receipt(settled.outcome, histories.get(plan.lease.ref.topic, "failures"))
    ]
    kept = log.dialect.ignore("worker, serial")
    insert_all(log, f"sqlqueue_receipt ({RECEIPT_COLUMNS})", RECEIPT, kept, rows, CHUNK)


def _receipt_values(ref: PartitionRef, settled: SettledAttempt, worker: str, now: float) -> tuple[object, ...]:
    attempt, outcome = settled
    what = (ref.group, ref.topic, ref.partition, attempt.offset, outcome.kind, attempt.number)
    ago = (round((now - (moment or now)) * 1_000_000) for moment in (attempt.started, attempt.finished))
    return (*what, worker, attempt.serial, *ago)


def _wants_receipt(outcome: Outcome, history: str) -> bool:
    return history == "all" or (history == "failures" and outcome.kind not in (ACKED, POSTPONED))
