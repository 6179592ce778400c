"""The flights' dead letters, with flight, reason and error."""

from __future__ import annotations

from dataclasses import dataclass

from example_project.flights.data import published_flight_id
from example_project.flights.rules import NEVER_DEPARTED, NO_TAIL_NUMBER, TOPIC
from sqlqueue.models import Message


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A flight that is a dead letter of a group; attempts: how many there were; error: the exception's last line."""

    group: str
    flight: str
    reason: str
    error: str
    attempts: int


def dead_letters() -> list[DeadLetter]:
    """Return the dead letters of all groups, the oldest first."""
    rows = Message.objects.dead_letters(topic=TOPIC).order_by("offset")
    return [
        DeadLetter(
            group=row.failed_group,
            flight=published_flight_id(row.payload),
            reason=_reason(_last_line(row.last_error or "")),
            error=_last_line(row.last_error or ""),
            attempts=row.failure_count,
        )
        for row in rows.iterator()
    ]


def _reason(error: str) -> str:
    """Return the reason that an error names, one of those in rules.py, or the error itself."""
    return next((reason for reason in (NO_TAIL_NUMBER, NEVER_DEPARTED) if error.endswith(reason)), error)


def _last_line(error: str) -> str:
    """Return the last line of a traceback, which names the exception."""
    return error.strip().rpartition("\n")[2]
