"""Kept results: what a handler returned is stored in the transaction that settles its message."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from sqlqueue.conf import settings
from sqlqueue.core.outcomes import ACKED, DEAD, Outcome, charged
from sqlqueue.core.partition.ref import PartitionRef
from sqlqueue.core.settle_plan import Attempt, SettlePlan
from sqlqueue.database.chunks import insert_all
from sqlqueue.database.limits import check_result
from sqlqueue.database.statements import dialect
from sqlqueue.exceptions import InvalidMessage, InvalidResult
from sqlqueue.log.encoding import encode

COLUMNS = (
    "topic, partition_key, message_id, consumer_group, message_offset, outcome, attempts, result, error, started_at,"
    " finished_at, expires_at"
)
ROW = "(%s, %s, %s, %s, %s, %s, %s, %s, %s, {earlier}, {earlier}, {later})"
KEY = "message_id, topic, partition_key, consumer_group"
UPDATES = {name.strip(): "{new:" + name.strip() + "}" for name in COLUMNS.split(",")[4:]}
CHUNK = 500


def result_text(alias: str, value: Any) -> str | None:
    """Return the JSON text of what a handler returned, None for None. Raises InvalidResult if it cannot be stored, or
    would not come back equal."""
    if value is None:
        return None
    try:
        text = encode(value, "result")
        check_result(alias, text, settings.MAX_PAYLOAD_BYTES)
    except InvalidMessage as error:
        raise InvalidResult(
            f"{error}. The handler has returned it, and its consumer keeps results: return JSON, or leave keep_results "
            "out. It is not run again by itself; replay the dead letter once that is corrected."
        ) from error
    return text


def write_results(alias: str, plans: Iterable[SettlePlan], now: float) -> None:
    """Store the results of the settled attempts of plans, in the current transaction. One statement, or one for each
    500 rows or megabyte. Those of handlers that have settled in their own transaction are there already."""
    rows = [
        _values(plan.lease.ref, attempt, outcome, plan.keep_results, now)
        for plan in plans
        if plan.keep_results is not None
        for attempt, outcome in plan.settled
        if outcome.kind == DEAD or (outcome.kind == ACKED and not outcome.committed)
    ]
    _insert(alias, rows)


def write_result(alias: str, ref: PartitionRef, attempt: Attempt, outcome: Outcome, kept: float) -> None:
    """Store an attempt's result in the current transaction. kept: seconds."""
    now = time.monotonic()
    attempt.finished = now
    _insert(alias, [_values(ref, attempt, outcome, kept, now)])


def _insert(alias: str, rows: list[tuple[object, ...]]) -> None:
    upsert = dialect(alias).upsert(KEY, UPDATES)
    insert_all(alias, f"sqlqueue_result ({COLUMNS})", ROW, upsert, rows, CHUNK)


def _values(ref: PartitionRef, attempt: Attempt, outcome: Outcome, kept: float, now: float) -> tuple[object, ...]:
    message = attempt.message
    what = (ref.topic, message.key, message.id, ref.group, message.offset, outcome.kind)
    ago = [round((now - (moment or now)) * 1_000_000) for moment in (attempt.started, attempt.finished)]
    return (
        *what,
        charged(attempt.number, outcome),
        outcome.result,
        outcome.error or None,
        *ago,
        round(kept * 1_000_000),
    )
