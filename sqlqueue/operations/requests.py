"""Operator requests (replays and reschedulings): consumer processes carry them out, one step of each at a time."""

from __future__ import annotations

import logging

from django.db import Error

from sqlqueue.core.bounds import MOST_RATE, checked_rate
from sqlqueue.core.logfmt import logfmt
from sqlqueue.core.outcomes import message_of
from sqlqueue.database import retries
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.database.gate import REQUESTS, take_duty
from sqlqueue.database.log import Log
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.models import Request
from sqlqueue.models.request import ACTIVE, CANCELLED, FAILED, REPLAY, RESCHEDULE, RUNNING, as_note
from sqlqueue.operations import replay_requests, reschedule_requests

logger = logging.getLogger("sqlqueue")

AT_ONCE = 100  # requests that are read at once
INTERVAL = 1.0  # seconds between two steps of a request that has a rate, or waits
# Of a request; its other columns do not change.
PROGRESS = ("state", "done", "at_partition", "at_priority", "at_offset", "trial_offset", "note")


# What takes the next messages of a request, so many at most, and notes in it how far it has come.
STEPS = {REPLAY: replay_requests.step, RESCHEDULE: reschedule_requests.step}


def cancel(log: Log, number: int) -> bool:
    """Cancel a request that is not done; return whether it was not. What it has done stays done."""
    rows = Request.objects.using(log.alias).filter(pk=number, state__in=ACTIVE)
    return bool(rows.update(state=CANCELLED, updated_at=DatabaseNow()))


def carry_out(log: Log) -> bool:
    """Do the next step of every request that is not done; return whether there is more to do at once. An error of the
    database that one of them has met is raised at the end."""
    rows = Request.objects.using(log.alias).filter(state__in=ACTIVE).order_by("id").values_list("pk", flat=True)
    more, last = False, 0
    failed: Error | None = None
    while some := list(rows.filter(pk__gt=last)[:AT_ONCE]):
        for number in some:
            try:
                more = _next(log, number) or more
            except Error as error:
                if retries.classify(error) is retries.ErrorKind.GONE:
                    raise
                failed = error
        last = some[-1]
    if failed is not None:
        raise failed
    return more


def _next(log: Log, number: int) -> bool:
    """Do the next step of one request; return whether there is more to do at once. A failure affects only this one,
    which goes on with the next message if its kind can skip one.

    Raises errors of the database that may pass, other than contention.
    """
    reason = Exception()
    for one_by_one in (False, True):  # many at once; if that fails, one by one to find the one that fails
        try:
            return retries.run(log, _step, log, number, one_by_one)
        except Exception as error:
            kind = retries.classify(error) if isinstance(error, Error) else None
            if kind is retries.ErrorKind.CONTENTION:
                return False  # retries.run has logged it
            if kind is not None and kind not in retries.FOR_GOOD:
                raise
            reason = error
    logger.warning(logfmt("request_refused", request=number, error=reason))
    return retries.run(log, _skip, log, number, reason)


def _step(log: Log, number: int, one_by_one: bool) -> bool:
    """Do one step of a request and update its row, in one transaction: no message is counted twice."""
    request = _locked(log, number)
    if request is None:
        return False
    rate = checked_rate(request.rate)
    since = (request.now - request.updated_at).total_seconds()  # type: ignore[attr-defined]
    if rate is not None and request.done and since < max(INTERVAL, 1 / rate):
        return False  # another process has just done a step, or the rate is low
    before, done = _progress(request), request.done
    of_a_step = MOST_RATE if rate is None else max(1, int(rate * INTERVAL))
    STEPS[request.kind](log, request, 1 if one_by_one else of_a_step)
    if _progress(request) == before:  # it waits: for its trial, or for what another transaction has locked
        return False
    moved = request.done > done
    _save(log, request, stepped=moved or not request.active)  # the rate counts messages, not reads
    return request.state == RUNNING and (rate is None or not moved)


def _skip(log: Log, number: int, reason: Exception) -> bool:
    """Pass by the message that cannot be taken; fail the request if there is none, or the request itself is invalid."""
    request = _locked(log, number)
    if request is None:
        return False
    invalid = isinstance(reason, ConfigurationError) or request.kind != REPLAY
    if invalid or not replay_requests.skip(log, request, reason):
        request.state, request.note = FAILED, as_note(message_of(reason) or type(reason).__name__)
    _save(log, request)
    return request.active and request.rate is None


def _locked(log: Log, number: int) -> Request | None:
    """Lock a request that is not done, annotated with `now`; None if it is done or another process has the exclusive
    task."""
    if not take_duty(log, REQUESTS):
        return None
    rows = Request.objects.using(log.alias).filter(pk=number, state__in=ACTIVE).annotate(now=DatabaseNow())
    return rows.select_for_update().first()


def _progress(request: Request) -> list[object]:
    return [getattr(request, name) for name in PROGRESS]


def _save(log: Log, request: Request, stepped: bool = True) -> None:
    """Store a request's progress. stepped: the time to its next step begins now."""
    columns = [*PROGRESS, "updated_at"] if stepped else PROGRESS
    if stepped:
        request.updated_at = DatabaseNow()
    request.save(using=log.alias, update_fields=columns)
