"""Settle: outcomes, the position and the next claims of many streams, in one transaction, each fenced by its token."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from django.db import connections

from sqlqueue.core.codec import as_text
from sqlqueue.core.fingerprint import fingerprint
from sqlqueue.core.lines import line
from sqlqueue.core.outcomes import ACKED, COMMITTED, POSTPONED
from sqlqueue.core.plan import Hand, Plan, RowWrite
from sqlqueue.core.stream import Address
from sqlqueue.database import faults
from sqlqueue.database.chunks import insert_all
from sqlqueue.database.dialects import dialect, execute
from sqlqueue.database.entry import FailedRow, LogRow, Stored
from sqlqueue.database.gate import insert_failed
from sqlqueue.database.weight import LIGHT, weight
from sqlqueue.log import ranges, topics

logger = logging.getLogger("sqlqueue")

# The one row that is written for a batch in which nothing fails. Values, never lowered: an atomic batch may have moved
# the position itself meanwhile. Index: the primary key.
ADVANCE = """
    UPDATE sqlqueue_offset SET position = {greatest}(position, %s), offset_acked = {greatest}(offset_acked, %s),
    claimed_to = {greatest}(claimed_to, %s), updated_at = {now} WHERE id = %s AND fencing_token = %s
"""
# The last one of an owner: C = P, nothing is handed out any more. Index: the primary key.
RELEASE = """
    UPDATE sqlqueue_offset SET position = {greatest}(position, %s), offset_acked = {greatest}(offset_acked, %s),
    claimed_to = {greatest}(position, %s), updated_at = {now} WHERE id = %s AND fencing_token = %s
"""
POSITION = "SELECT position FROM sqlqueue_offset WHERE id = %s AND fencing_token = %s{update}"  # index: the primary key
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
STREAM = ("topic", "consumer_group", "partition", "priority")
ROW_UPDATES = {
    "in_flight": "{new:in_flight}",
    "retry_count": "{new:retry_count}",
    "last_error": "COALESCE({new:last_error}, sqlqueue_delivery_state.last_error)",
    "invisible_until": "{new:invisible_until}",
    "acked": "{new:acked}",
}
# An acked row stays acked: an atomic settle whose reply was lost has said so.
NOT_ACKED = "sqlqueue_delivery_state.acked = {false}"
RECEIPT_COLUMNS = (
    'consumer_group, topic, "partition", message_offset, outcome, attempts, worker, serial, started_at, finished_at'
)
RECEIPT = "(%s, %s, %s, %s, %s, %s, %s, %s, {earlier}, {earlier})"
CHUNK = 500


def settle(alias: str, plans: Sequence[Plan], worker: str, histories: dict[str, str], now: float) -> list[Plan]:
    """Execute plans; return those whose token was stale: they have changed nothing, and their streams are lost.

    worker: the subscriber's name, for receipts; histories: topic to its `history`; now: the process's monotonic
    seconds.
    It may be run again after an unknown outcome: every value is absolute.
    """
    if len(plans) == 1 and _is_plain(plans[0], histories) and not connections[alias].in_atomic_block:
        return [] if faults.run_statement(alias, _advance, alias, plans[0]) else list(plans)
    return faults.run(alias, _settle, alias, plans, worker, histories, now)


def _is_plain(plan: Plan, histories: dict[str, str]) -> bool:
    receipts = plan.settled and histories.get(plan.stream.address.topic) == "all"
    return not (plan.rows or plan.deletes or plan.ranges or plan.dead or receipts)


def _settle(alias: str, plans: Sequence[Plan], worker: str, histories: dict[str, str], now: float) -> list[Plan]:
    written: list[Plan] = []
    for plan in sorted(plans, key=_place):
        if plan.stream.manners.atomic and (plan.dead or any(not row.acked for row in plan.rows)):
            _keep_what_was_committed(alias, plan)
        if _advance(alias, plan):
            written.append(plan)
    for plan in written:
        _delete_rows(alias, plan)
    _write_rows(alias, written)
    ranges.write(alias, written)
    for plan in written:
        _bury(alias, plan)
    _write_receipts(alias, written, worker, histories, now)
    return [plan for plan in plans if plan not in written]


def _place(plan: Plan) -> tuple[object, ...]:
    """The order of the unique index of the offset rows, in which acquiring and revoking lock them too."""
    address = plan.stream.address
    return address.topic, address.group, address.partition, address.priority


def _keep_what_was_committed(alias: str, plan: Plan) -> None:
    """Take out of a plan what an atomic handler's own transaction has settled, while its timeout was being decided.

    A batch may have moved the stored position past messages that have no row; the others' rows are acked.
    """
    found = execute(alias, POSITION, (plan.stream.id, plan.stream.token)).fetchone()
    if found is None:
        return  # stale: nothing will be written
    address = plan.stream.address
    stream = (address.topic, address.group, address.partition, address.priority)
    claimed_first = plan.taken_up  # at or below the position, and without a row until now: but not settled
    decided = {row.offset for row in plan.rows if not row.acked} | {dead.message.offset for dead in plan.dead}
    offsets = sorted(decided - claimed_first)
    settled = {offset for offset in offsets if offset <= found[0]}
    for start in range(0, len(offsets), CHUNK):
        some = offsets[start : start + CHUNK]
        text = STATES.replace("{marks}", ", ".join(["%s"] * len(some)))
        for offset, acked in execute(alias, text, (*stream, *some)).fetchall():
            (settled.add if acked else settled.discard)(offset)
    if settled:
        plan.rows[:] = [row for row in plan.rows if row.offset not in settled]
        plan.dead[:] = [dead for dead in plan.dead if dead.message.offset not in settled]
        for hand in plan.settled:
            if hand.offset in settled:
                hand.outcome = COMMITTED


def _advance(alias: str, plan: Plan) -> bool:
    stream = plan.stream
    if plan.release:
        values = (plan.position, plan.watermark, plan.position, stream.id, stream.token)
        return bool(execute(alias, RELEASE, values).rowcount == 1)
    values = (plan.position, plan.watermark, plan.claimed, stream.id, stream.token)
    return bool(execute(alias, ADVANCE, values).rowcount == 1)


def _delete_rows(alias: str, plan: Plan) -> None:
    address = plan.stream.address
    stream = (address.topic, address.group, address.partition, address.priority)
    for start in range(0, len(plan.deletes), CHUNK):
        some = plan.deletes[start : start + CHUNK]
        text = dialect(alias).delete("sqlqueue_delivery_state", "message_offset", len(some), STREAM)
        execute(alias, text, (*some, *stream))


def _write_rows(alias: str, plans: Sequence[Plan]) -> None:
    rows = [_row_values(plan.stream.address, row) for plan in plans for row in plan.rows]
    upsert = dialect(alias).upsert(ROW_KEY, ROW_UPDATES, NOT_ACKED)
    insert_all(alias, f"sqlqueue_delivery_state ({ROW_COLUMNS})", ROW, upsert, rows, CHUNK)


def _row_values(address: Address, row: RowWrite) -> tuple[object, ...]:
    stream = (address.group, address.topic, address.partition, address.priority)
    delay = round(row.delay * 1_000_000)
    return (*stream, row.offset, row.in_flight, row.retry_count, row.error, delay, row.acked)


def _bury(alias: str, plan: Plan) -> None:
    """Copy dead letters to the dead-letter topic, in the transaction that settles them."""
    if not plan.dead:
        return
    address = plan.stream.address
    graveyard = topics.dead_letters(alias, address.topic)
    for message, attempts, error in plan.dead:
        copy_id = f"{address.group}:{message.offset}"
        payload, headers = as_text(message.payload), as_text(message.headers)
        partition = address.partition % graveyard.partitions
        row = LogRow(graveyard.name, partition, 0, message.key, copy_id, payload or "null", headers, "")
        if weight(row) > LIGHT:  # and perhaps more than the server takes, with its error
            row = row._replace(payload=Stored("sqlqueue_message", "offset", message.offset), headers=None)
        failed = FailedRow(attempts, error, address.topic, message.offset, address.group, fingerprint(error))
        if not insert_failed(alias, row, failed):  # a person has discarded it, or ordered its replay
            logger.warning(line("dead_letter_gone", topic=address.topic, group=address.group, offset=message.offset))


def _write_receipts(alias: str, plans: Sequence[Plan], worker: str, histories: dict[str, str], now: float) -> None:
    hands = [
        hand
        for plan in plans
        for hand in plan.settled
        if _wants_receipt(hand, histories.get(plan.stream.address.topic, "failures"))
    ]
    rows = [_receipt_values(hand, worker, now) for hand in hands]
    kept = dialect(alias).ignore("worker, serial")
    insert_all(alias, f"sqlqueue_receipt ({RECEIPT_COLUMNS})", RECEIPT, kept, rows, CHUNK)


def _receipt_values(hand: Hand, worker: str, now: float) -> tuple[object, ...]:
    assert hand.outcome is not None
    address = hand.stream.address
    what = (address.group, address.topic, address.partition, hand.offset, hand.outcome.kind, hand.attempt)
    ago = (round((now - (moment or now)) * 1_000_000) for moment in (hand.started, hand.finished))
    return (*what, worker, hand.serial, *ago)


def _wants_receipt(hand: Hand, history: str) -> bool:
    kind = hand.outcome.kind if hand.outcome else ACKED
    return history == "all" or (history == "failures" and kind not in (ACKED, POSTPONED))
