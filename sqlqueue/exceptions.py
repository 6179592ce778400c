"""One tree of errors: what was wrong, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

LONGEST_DELAY = 10 * 365 * 86_400.0  # seconds: ten years
SHORTEST_LIFE = 0.001  # seconds: the step of the databases' coarsest clock, SQLite's


class SqlqueueError(Exception):
    """The root of every error that sqlqueue raises."""


class ConfigurationError(SqlqueueError):
    """A setting, an option or a registration that cannot work."""


class InvalidMessage(SqlqueueError, ValueError):
    """A message was refused where it entered; nothing was written."""


class PartlyPublished(SqlqueueError):
    """publish_many has published the messages of some databases, and others have failed. failed: the errors by
    database; unpublished: the positions, from 0, of the messages that are not published, as far as is known: where the
    connection was lost they may be, which their ids, if they have any, sort out when they are published again."""

    def __init__(self, topic: str, failed: Mapping[str, Exception], unpublished: Sequence[int]):
        super().__init__(topic, failed, unpublished)
        self.topic, self.failed, self.unpublished = topic, dict(failed), list(unpublished)

    def __str__(self) -> str:
        errors = "; ".join(f"database {database!r}: {error}" for database, error in self.failed.items())
        return (
            f"{len(self.unpublished)} messages of topic {self.topic!r} are not published, those of other databases"
            f" are: "
            f"publish those at the positions in `unpublished` again ({errors})"
        )


class InvalidResult(SqlqueueError, ValueError):
    """A handler whose consumer keeps results has returned what cannot be stored; its message is a dead letter."""


class CallFailed(SqlqueueError):
    """The message of a call is a dead letter, or no handler gets it. topic, id, key: its own; group: where it is a dead
    letter, "" if no handler gets it; error: the last attempt's, or why no handler gets it, as text."""

    def __init__(self, topic: str, id: str, key: str, group: str, error: str):
        super().__init__(topic, id, key, group, error)
        self.topic, self.id, self.key, self.group, self.error = topic, id, key, group, error

    def __str__(self) -> str:
        became = f"is a dead letter of group {self.group!r}" if self.group else "was called for nothing"
        return f"message {self.id!r} of topic {self.topic!r} {became}: {self.error}"


class LeaseLost(SqlqueueError):
    """The lease has another owner now: what was being settled has changed nothing, and will be delivered again."""

    def __init__(self, message: str = "the lease of this partition was lost; its new owner delivers the message again"):
        super().__init__(message)


class BrokenTransaction(SqlqueueError):
    """A handler has left a connection inside a transaction, or its own transaction has ended before it returned. What
    it wrote there was rolled back, as far as that was possible, and the attempt has failed."""


class HorizonUnknown(SqlqueueError):
    """No probe of the publish gate has finished yet: some transaction that publishes has been open all the time."""


class Unknown(SqlqueueError):
    """A message needs code that this process does not have. Its delivery waits for a process that has it, or is a dead
    letter after UNKNOWN_FOR."""


class WorkerEnded(SqlqueueError):
    """The error of a task whose message was given up before an attempt could say how it ended: its consumer process
    was killed each time. It is never raised."""


class Expired(SqlqueueError):
    """The error of a task that was to begin before its time was over, and did not. It is never raised."""


class Unreachable(SqlqueueError):
    """The queue's database does not answer."""


class Settlement(Exception):
    """What a handler raises to say what should become of its delivery."""


def seconds(value: float | timedelta, name: str = "delay") -> float:
    """Return a duration in seconds; refuse what is negative or not a duration."""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)) or number != number:
        raise InvalidMessage(f"{name} must be a number of seconds or a timedelta, not {value!r}")
    if not 0 <= number <= LONGEST_DELAY:
        raise InvalidMessage(f"{name} must lie between 0 and ten years, not {value!r}")
    return float(number)


def lifetime(value: float | timedelta) -> float:
    """Return after how many seconds, in whole milliseconds, a message expires; refuse what is no duration, too short,
    or too long."""
    number = seconds(value, "expires")
    if number < SHORTEST_LIFE:
        raise InvalidMessage(f"expires must be at least a millisecond, not {value!r}: leave it out for never")
    return round(number, 3)


class Retry(Settlement):
    """Deliver again after `delay` seconds (or the consumer's backoff); the attempt counts."""

    def __init__(self, reason: str = "", *, delay: float | timedelta | None = None):
        super().__init__(reason)
        self.delay = None if delay is None else seconds(delay)


class Postpone(Settlement):
    """Not now: deliver again after `delay` seconds; no attempt is charged."""

    def __init__(self, reason: str = "", *, delay: float | timedelta):
        super().__init__(reason)
        self.delay = seconds(delay)


class Reject(Settlement):
    """Straight to the dead letters, with the reason."""


class NotRun(Reject):
    """A handler, a task or an upcast has returned an awaitable or a generator, so that code which it stands for has not
    run: the message is a dead letter."""


class PayloadMismatch(Reject):
    """A message's payload does not fit the type that its consumer reads it as; names the field."""
