"""How an attempt ends: the outcome for what a handler returned or raised, and its error as text. Pure."""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass
from typing import Final

from sqlqueue.core.effects import Effect, EffectValue
from sqlqueue.core.retry_policy import ALL, Backoff, BackoffFunction, RetryFilter
from sqlqueue.exceptions import BrokenTransaction, InvalidResult, Postpone, Reject, Retry

ACKED: Final = "acked"
RETRIED: Final = "retried"
POSTPONED: Final = "postponed"
DEAD: Final = "dead"
RELEASED: Final = "released"
LOST: Final = "lost"
REPLAYED: Final = "replayed"  # none of an attempt: the receipt of a dead letter that was replayed

ERROR_LENGTH = 10_000
TOO_LATE: Final = "expired"  # the error of a dead letter whose time was over; no handler's error is just this
LENGTH = 200
FRAME = re.compile(r'^ *File "(?P<file>[^"]+)", line \d+, in (?P<function>.+)$', re.MULTILINE)
RAISED = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?::|$)", re.MULTILINE)
NUMBER = re.compile(r"\d+")


class VisibilityTimeout(Exception):
    """The handler was still running when its visibility timeout had passed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """kind: one of the constants above; delay: seconds until the next delivery; error: what went wrong, as text;
    result: what an acked one's handler returned, as JSON text, if its consumer keeps that, or its publisher waits for a
    reply; kept: for how many seconds that publisher has it stored, None if there is none; effect: what
    is written with the settle of an acked one, whose handler has asked for that by an exception."""

    kind: str
    delay: float = 0.0
    error: str = ""
    committed: bool = False  # the handler's own transaction has settled it already (atomic)
    moved_to: int | None = None  # and moved the stored position there
    result: str | None = None
    kept: float | None = None
    effect: EffectValue | None = None


SUCCESS: Final = Outcome(ACKED)
COMMITTED: Final = Outcome(ACKED, committed=True)
UNSTARTED: Final = Outcome(RELEASED)
EXPIRED: Final = Outcome(DEAD, error=TOO_LATE)  # before its handler was called
SUPERSEDED: Final = Outcome(LOST)


def needs(app: str) -> Outcome:
    """Return the outcome of a message that needs an app which is not installed."""
    return Outcome(DEAD, error=f"ConfigurationError: the message needs {app!r} in INSTALLED_APPS")


def charged(number: int, outcome: Outcome) -> int:
    """Return how many attempts a message has had that was settled so at attempt `number`."""
    return number - 1 if outcome is EXPIRED else number


def committed_at(moved_to: int | None) -> Outcome:
    """Return the outcome of a handler whose own transaction has acked: it moved the stored position to `moved_to`, or
    wrote an acked row (None)."""
    return COMMITTED if moved_to is None else Outcome(ACKED, committed=True, moved_to=moved_to)


def with_effect(effect: Effect, error: BaseException) -> Outcome:
    """Return the outcome of a handler that has asked for an effect. Raises InvalidMessage for one that cannot be
    stored."""
    return Outcome(ACKED, effect=EffectValue(effect, effect.decide(error)))


def describe(error: BaseException) -> str:
    """Return an error's traceback as text."""
    try:
        return text_of(error).strip()
    except Exception as another:  # its own __str__ may fail
        return f"{type(error).__qualname__}, which cannot be described: {another!r}"


def message_of(error: BaseException) -> str:
    """Return an error's own message; "" if it has none."""
    try:
        return str(error)
    except Exception as another:
        return f"{type(error).__qualname__}, which cannot be described: {another!r}"


def told(error: BaseException) -> str:
    """Return an error's own message as it is stored; "" if it has none."""
    text = storable(message_of(error))
    return f"{type(error).__name__}: {text}" if text == TOO_LATE else text


def storable(text: str) -> str:
    """Return a text that every database can store: half surrogates and NULs are escaped, and of one that is too long
    the end is kept, which names the error. A settle that failed because of an error's text would end the process."""
    text = text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
    return text if len(text) <= ERROR_LENGTH else "… " + text[-ERROR_LENGTH:]


def decide(
    error: BaseException | None,
    attempt: int,
    max_attempts: int | None,
    backoff: Backoff | BackoffFunction,
    retried: RetryFilter = ALL,
) -> Outcome:
    """Return the outcome of a handler that returned (None) or raised, at this attempt.

    max_attempts: None for no bound. retried: which of the handler's exceptions are retried.
    """
    if error is None:
        return SUCCESS
    if isinstance(error, Postpone):
        return Outcome(POSTPONED, error.delay, told(error))
    if isinstance(error, Reject):
        return Outcome(DEAD, error=told(error) or "rejected")
    if isinstance(error, InvalidResult):  # what it does has been done: to run it again would return the same
        return Outcome(DEAD, error=told(error))
    always = isinstance(error, (Retry, VisibilityTimeout))  # whatever the filter names
    by_message = always or isinstance(error, BrokenTransaction)
    text = (told(error) or type(error).__name__) if by_message else storable(describe(error))
    if (max_attempts is not None and attempt >= max_attempts) or (not always and retried.rejects(error)):
        return Outcome(DEAD, error=text)
    if isinstance(error, Retry) and error.delay is not None:
        return Outcome(RETRIED, error.delay, text)
    wait = backoff.wait(attempt, error)
    # The error stays last: its last line is what lists and log lines show.
    return Outcome(RETRIED, wait.seconds, storable(f"{wait.problem}\n\n{text}") if wait.problem else text)


def text_of(error: BaseException) -> str:
    """Return an error with its traceback, and with those of its causes, as text.

    `traceback.format_exception` asks the file system whether the source of each frame has changed. A handler fails
    often at the same lines, so this happens for errors with causes and for groups only.
    """
    chained = error.__cause__ is not None or (error.__context__ is not None and not error.__suppress_context__)
    if chained or error.__traceback__ is None or hasattr(error, "exceptions"):
        return "".join(traceback.format_exception(error))
    frames = [
        traceback.FrameSummary(frame.f_code.co_filename, line, frame.f_code.co_name, lookup_line=False)
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames)]
    return "".join([*lines, *traceback.format_exception_only(error)])


def fingerprint(error: str) -> str:
    """Return the class and the location of the last frame of a traceback: "KeyError in flights/rules.py:check".

    Without line numbers, which change with every release. A text that is no traceback (a Reject's reason) stands for
    itself, first line only, its numbers as "#". At most 200 characters; "" for "".
    """
    frames = list(FRAME.finditer(error))
    if frames and (raised := RAISED.search(error, frames[-1].end() + 1)):
        location = "/".join(frames[-1]["file"].replace("\\", "/").split("/")[-2:])
        return f"{raised['type']} in {location}:{frames[-1]['function']}"[:LENGTH]
    lines = error.strip().splitlines()
    return NUMBER.sub("#", lines[0])[:LENGTH] if lines else ""
