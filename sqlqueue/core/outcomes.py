"""What became of a delivery, decided purely."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Final

from sqlqueue.core.backoff import Backoff
from sqlqueue.exceptions import BrokenTransaction, Postpone, Reject, Retry

ACKED: Final = "acked"
RETRIED: Final = "retried"
POSTPONED: Final = "postponed"
DEAD: Final = "dead"
HANDED_BACK: Final = "handed back"
LOST: Final = "lost"

ERROR_LENGTH = 10_000


class VisibilityTimeout(Exception):
    """The handler was still running when its visibility timeout had passed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """kind: one of the words above; delay: seconds until the next delivery; error: what went wrong, for people."""

    kind: str
    delay: float = 0.0
    error: str = ""
    committed: bool = False  # the handler's own transaction has settled it already (atomic)
    moved_to: int | None = None  # and moved the stored position there


SUCCESS: Final = Outcome(ACKED)
COMMITTED: Final = Outcome(ACKED, committed=True)
UNSTARTED: Final = Outcome(HANDED_BACK)
SUPERSEDED: Final = Outcome(LOST)


def committed_at(moved_to: int | None) -> Outcome:
    """Return the outcome of a transaction that has acked by itself: it moved the stored position there, or wrote a row
    (None)."""
    return COMMITTED if moved_to is None else Outcome(ACKED, committed=True, moved_to=moved_to)


def describe(error: BaseException) -> str:
    """Return an error's traceback as text."""
    try:
        return "".join(traceback.format_exception(error)).strip()
    except Exception as another:  # its own __str__ may fail
        return f"{type(error).__qualname__}, which cannot be described: {another!r}"


def said_by(error: BaseException) -> str:
    """Return what a person wrote into an error; "" if nothing."""
    try:
        return str(error)
    except Exception as another:
        return f"{type(error).__qualname__}, which cannot be described: {another!r}"


def storable(text: str) -> str:
    """Return a text that every database can store: half surrogates and NULs escaped, and where it is too long its end,
    which names the error. A settle that failed for its text would take the whole process with it."""
    text = text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
    return text if len(text) <= ERROR_LENGTH else "… " + text[-ERROR_LENGTH:]


def decide(error: BaseException | None, attempt: int, max_attempts: int, backoff: Backoff) -> Outcome:
    """Return the outcome of a handler that returned (None) or raised, at this attempt."""
    if error is None:
        return SUCCESS
    if isinstance(error, Postpone):
        return Outcome(POSTPONED, error.delay, storable(said_by(error)))
    if isinstance(error, Reject):
        return Outcome(DEAD, error=storable(said_by(error)) or "rejected")
    told = isinstance(error, (Retry, VisibilityTimeout, BrokenTransaction))
    text = storable(said_by(error) or type(error).__name__ if told else describe(error))
    if attempt >= max_attempts:
        return Outcome(DEAD, error=text)
    delay = error.delay if isinstance(error, Retry) and error.delay is not None else backoff.delay(attempt)
    return Outcome(RETRIED, delay, text)
