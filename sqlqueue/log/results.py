"""Kept results: what a handler returned, or replied, is stored in the transaction that settles its message."""

from __future__ import annotations

import time
from asyncio import _get_running_loop  # None without one
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

from django.db import Error

from sqlqueue.conf import settings
from sqlqueue.core.outcomes import ACKED, DEAD, SUCCESS, Outcome, charged
from sqlqueue.core.partition.ref import PartitionRef
from sqlqueue.core.settle_plan import Attempt, SettlePlan
from sqlqueue.database.error_codes import FOR_GOOD, classify
from sqlqueue.database.limits import check_result
from sqlqueue.database.log import Log
from sqlqueue.database.sizes import insert_all
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
KEPT = attrgetter("outcome.kept")


def asking(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Return those whose publishers wait for a reply."""
    return [each for each in attempts if each.message.headers is not None and each.message.reply_kept is not None]


def outcome_of(log: Log, attempt: Attempt, returned: Any, keeps: bool) -> Outcome:
    """Return the outcome of a handler that has returned, with its result if the consumer keeps results, or if the
    publisher waits for a reply. Raises InvalidResult if it cannot be stored."""
    message = attempt.message
    kept = None if message.headers is None else message.reply_kept
    if not keeps and kept is None:
        return SUCCESS
    with _refusing():
        text = _text(returned) if attempt.reply is None else attempt.reply
        if text is not None:
            check_result(log, text, settings.MAX_PAYLOAD_BYTES)
    return Outcome(ACKED, result=text, kept=kept)


def reply_text(log: Log, value: Any) -> str | None:
    """Return the JSON text of a reply, None for None. On an event loop, which may not ask the server what it can keep,
    that is left to outcome_of; also where the server does not answer. Raises InvalidResult."""
    with _refusing():
        text = _text(value)
        try:
            if text is not None and _get_running_loop() is None:
                check_result(log, text, settings.MAX_PAYLOAD_BYTES)
        except Error as error:  # the engine's own statement, which is no error of the handler's
            if classify(error) in FOR_GOOD:
                raise
    return text


def _text(value: Any) -> str | None:
    return None if value is None else encode(value, "result")


@contextmanager
def _refusing() -> Iterator[None]:
    """Raise InvalidResult for a result that cannot be stored, or would not come back equal."""
    try:
        yield
    except InvalidMessage as error:
        raise InvalidResult(
            f"{error}. The handler has returned it, and its consumer keeps results, or a caller waits for it: return "
            "JSON, or leave keep_results out. It is not run again by itself; replay the dead letter once that is "
            "corrected."
        ) from error


def are_asked_for(plan: SettlePlan) -> bool:
    """Tell whether a plan has results to store: its consumer keeps them, or a publisher waits for a reply."""
    return plan.keep_results is not None or any(map(KEPT, plan.settled))


def write_results(log: Log, plans: Iterable[SettlePlan], now: float) -> None:
    """Store the results of the settled attempts of plans, in the current transaction. One statement, or one for each
    500 rows or megabyte. Those of handlers that have settled in their own transaction are there already."""
    rows = [
        _values(plan.lease.ref, attempt, outcome, kept, now)
        for plan in plans
        for attempt, outcome in plan.settled
        if (outcome is not SUCCESS or plan.keep_results is not None)  # it asks for nothing itself
        if (kept := _kept(attempt, outcome, plan.keep_results)) is not None
    ]
    _insert(log, rows)


def write_own(
    log: Log, ref: PartitionRef, settled: Iterable[tuple[Attempt, Outcome]], keep_results: float | None
) -> None:
    """Store, in the current transaction, the results of attempts that it acks. keep_results: the consumer's, in
    seconds."""
    now = time.monotonic()
    rows = []
    for attempt, outcome in settled:
        if (kept := _kept(attempt, outcome, keep_results)) is not None:
            attempt.finished = now
            rows.append(_values(ref, attempt, outcome, kept, now))
    _insert(log, rows)


def _kept(attempt: Attempt, outcome: Outcome, keep_results: float | None) -> float | None:
    """Return for how many seconds what came of an attempt is stored; None for not at all."""
    if outcome.kind == DEAD:
        asked_for = attempt.message.reply_kept
    elif outcome.kind == ACKED and not outcome.committed and outcome.effect is None:
        asked_for = outcome.kept
    else:
        return None
    return max((each for each in (keep_results, asked_for) if each is not None), default=None)


def _insert(log: Log, rows: list[tuple[object, ...]]) -> None:
    upsert = log.dialect.upsert(KEY, UPDATES)
    insert_all(log, f"sqlqueue_result ({COLUMNS})", ROW, upsert, rows, CHUNK)


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
