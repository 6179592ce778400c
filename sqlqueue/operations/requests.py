"""Operator requests (replays and reschedulings): consumer processes carry them out, one step of each at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from django.db import Error

from sqlqueue.core.outcomes import storable
from sqlqueue.database import retries
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.database.gate import REPLAY, take_duty
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.models import Replay, Rescheduling
from sqlqueue.models.replay import ACTIVE, CANCELLED

AT_ONCE = 100
LEAST_RATE, MOST_RATE = 0.01, 1_000_000  # a second
NOTE_LENGTH = 300  # characters; the column's
INTERVAL = 1.0  # seconds between two steps of a request that has a rate, or waits

OperatorRequest = TypeVar("OperatorRequest", Replay, Rescheduling)


def checked_rate(rate: float | None) -> float | None:
    """Return the rate in messages a second; raise ConfigurationError if it is out of bounds."""
    if rate is None:
        return None
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not LEAST_RATE <= rate <= MOST_RATE:
        raise ConfigurationError(
            f"the rate must be messages a second, from {LEAST_RATE:g} to {MOST_RATE:,}, not {rate!r};"
            " without one they go as fast as they can"
        )
    return float(rate)


def cancel(alias: str, kind: type[OperatorRequest], number: int) -> bool:
    """Cancel a request that is not done; return whether it was not. What it has done stays done."""
    rows = kind._default_manager.using(alias).filter(pk=number, state__in=ACTIVE)
    return bool(rows.update(state=CANCELLED, updated_at=DatabaseNow()))


def of_each(alias: str, kind: type[OperatorRequest], step: Callable[[str, int], bool]) -> bool:
    """Do a step of every request of a kind that is not done; return whether there is more to do at once. An error of
    the database that one of them has met is raised at the end."""
    rows = kind._default_manager.using(alias).filter(state__in=ACTIVE).order_by("id").values_list("pk", flat=True)
    more, last = False, 0
    failed: Error | None = None
    while some := list(rows.filter(pk__gt=last)[:AT_ONCE]):
        for number in some:
            try:
                more = step(alias, number) or more
            except Error as error:
                if retries.classify(error) is retries.ErrorKind.GONE:
                    raise
                failed = error
        last = some[-1]
    if failed is not None:
        raise failed
    return more


def try_step(alias: str, step: Callable[..., bool], *arguments: object) -> bool | Exception:
    """Run a step in one transaction; return whether there is more to do at once, or the error with which it failed.

    Raises errors of the database that may pass, other than contention.
    """
    try:
        return retries.run(alias, step, alias, *arguments)
    except Error as error:
        kind = retries.classify(error)
        if kind is retries.ErrorKind.CONTENTION:
            return False  # retries.run has logged it
        if kind in retries.FOR_GOOD:
            return error
        raise
    except Exception as error:
        return error


def locked(alias: str, kind: type[OperatorRequest], number: int) -> OperatorRequest | None:
    """Lock a request that is not done, annotated with `now`; None if it is done or another process has the exclusive
    task."""
    if not take_duty(alias, REPLAY):
        return None
    rows = kind._default_manager.using(alias).filter(pk=number, state__in=ACTIVE).annotate(now=DatabaseNow())
    return rows.select_for_update().first()


def too_early(request: Replay | Rescheduling, rate: float | None) -> bool:
    """Tell whether the next step is not due yet: another process has just done one, or the rate is low."""
    since = (request.now - request.updated_at).total_seconds()  # type: ignore[union-attr]
    return rate is not None and bool(request.done) and since < max(INTERVAL, 1 / rate)


def step_size(rate: float | None, most: int = AT_ONCE) -> int:
    """Return how many messages or deliveries one step may take."""
    return most if rate is None else max(1, min(most, int(rate * INTERVAL)))


def as_note(text: str) -> str:
    """Return a text as the column `note` can store it."""
    return storable(text)[:NOTE_LENGTH]


def save(alias: str, request: Replay | Rescheduling, columns: Sequence[str], stepped: bool = True) -> None:
    """Store a request's progress. stepped: the time to its next step begins now."""
    if stepped:
        request.updated_at = DatabaseNow()
    request.save(using=alias, update_fields=[*columns, "updated_at"] if stepped else columns)
