"""Kept results and progress: what a handler returned, or replied, is stored in the transaction that settles its
message; how far it is meanwhile is stored by its consumer process, and deleted by that settle."""

from __future__ import annotations

import time
from asyncio import _get_running_loop
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any, NamedTuple

from django.db import Error

from sqlqueue.conf import settings
from sqlqueue.core.new_message import reply_kept
from sqlqueue.core.outcomes import ACKED, DEAD, SUCCESS, Outcome, charged
from sqlqueue.core.partition.ref import PartitionRef
from sqlqueue.core.settle_plan import Attempt, SettlePlan
from sqlqueue.database.clock import moment
from sqlqueue.database.error_codes import FOR_GOOD, classify
from sqlqueue.database.limits import check_result
from sqlqueue.database.log import Log
from sqlqueue.database.sizes import delete_all, insert_all
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
    return [
        each for each in attempts if each.message.headers is not None and reply_kept(each.message.headers) is not None
    ]


def outcome_of(log: Log, attempt: Attempt, returned: Any, keeps: bool) -> Outcome:
    """Return the outcome of a handler that has returned, with its result if the consumer keeps results, or if the
    publisher waits for a reply. Raises InvalidResult if it cannot be stored."""
    message = attempt.message
    kept = None if message.headers is None else reply_kept(message.headers)
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
        asked_for = reply_kept(attempt.message.headers)
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


# -- progress ---------------------------------------------------------------------------------------------------------
# A stored row has the fencing token of its writer. The writes of a former owner change nothing that its successor has
# stored, for tokens only grow; and what it stores where there is nothing yet is not read, for its token is not that of
# the offset row.

PROGRESS_COLUMNS = "topic, consumer_group, message_offset, done, total, note, updated_at, serial, fencing_token"
PROGRESS_ROW = "(%s, %s, %s, %s, %s, %s, {now}, %s, %s)"
PROGRESS_KEY = "message_offset, consumer_group"
# Of an earlier owner, or an earlier attempt of the same one. The columns that it reads are assigned last.
OLDER = (
    "sqlqueue_progress.fencing_token < {new:fencing_token} OR"
    " (sqlqueue_progress.fencing_token = {new:fencing_token} AND sqlqueue_progress.serial <= {new:serial})"
)
PROGRESS_UPDATES = {name: "{new:" + name + "}" for name in PROGRESS_COLUMNS.split(", ")[3:]}
# The progress that the present owners of a message have stored. Indexes: the unique (message_offset, group); the offset
# rows' unique (topic, group, partition, priority).
PRESENT = """
    SELECT p.consumer_group, p.done, p.total, p.note, {updated} FROM sqlqueue_progress p
    JOIN sqlqueue_offset o ON o.topic = p.topic AND o.consumer_group = p.consumer_group
    AND o.fencing_token = p.fencing_token
    WHERE p.message_offset = %s AND o."partition" = %s AND o.priority = %s
"""


class Reported(NamedTuple):
    """What a handler says of its progress. total: None if it does not know."""

    done: float
    total: float | None
    note: str


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a handler is: done of total (None: unknown), a note, and when that was stored."""

    done: float
    total: float | None
    note: str
    updated_at: datetime


def store_progress(log: Log, reported: Sequence[tuple[Attempt, Reported]]) -> None:
    """Store the progress of attempts that this process makes. One statement for up to 500."""
    rows = [_progress_values(attempt, one) for attempt, one in reported]
    upsert = log.dialect.upsert(PROGRESS_KEY, PROGRESS_UPDATES, OLDER)
    insert_all(log, f"sqlqueue_progress ({PROGRESS_COLUMNS})", PROGRESS_ROW, upsert, rows, CHUNK)


def _progress_values(attempt: Attempt, reported: Reported) -> tuple[object, ...]:
    lease = attempt.lease
    return (lease.ref.topic, lease.ref.group, attempt.offset, *reported, attempt.serial, lease.token)


def delete_progress(log: Log, plans: Iterable[SettlePlan]) -> None:
    """Delete the stored progress of what plans settle, in the current transaction."""
    for plan in plans:
        if not plan.lease.stored_progress:
            continue
        settled = {each.offset for each in plan.settled}
        offsets = sorted(plan.lease.stored_progress & settled)
        delete_all(log, "sqlqueue_progress", "message_offset", offsets, {"consumer_group": plan.lease.ref.group})


def present_progress(log: Log, offset: int, partition: int, priority: int) -> dict[str, Progress]:
    """Return the progress of a message in each group whose handler has reported some."""
    text = PRESENT.replace("{updated}", log.dialect.epoch("p.updated_at"))
    rows = log.execute(text, (offset, partition, priority)).fetchall()
    return {
        group: Progress(_number(done), None if total is None else _number(total), note, moment(updated))
        for group, done, total, note, updated in rows
    }


def _number(value: float) -> float:
    """Return whole numbers as such: the column holds floats."""
    return int(value) if float(value).is_integer() else value
