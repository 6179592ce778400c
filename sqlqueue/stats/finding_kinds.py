"""What a finding is: its kinds and severities. The overview, `queuedoctor` and the health endpoint show the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from django.utils.formats import number_format

ERROR: Final = "error"  # something does not work, or soon will not
WARNING: Final = "warning"  # it works, and an operator should look at it
NOTE: Final = "note"  # worth knowing

UNWRITABLE: Final = "unwritable"
NO_CONSUMERS: Final = "no_consumers"
DEATHS: Final = "deaths"
LATE_HEARTBEATS: Final = "late_heartbeats"
SERVERS: Final = "servers"
FAILING_TASK: Final = "failing_task"
AWAY: Final = "away"
PAUSED: Final = "paused"
OUTSIDE_HOURS: Final = "outside_hours"
BUDGET_SPENT: Final = "budget_spent"
STUCK: Final = "stuck"
UNOWNED: Final = "unowned"
BEHIND: Final = "behind"
FAILS: Final = "fails"
FALLS_BEHIND: Final = "falls_behind"
EPOCH: Final = "epoch"
CHANGE: Final = "change"
DEAD_LETTERS: Final = "dead_letters"
UNREAD: Final = "unread"
REFUSED: Final = "refused"
LATE: Final = "late"
OPEN_TRANSACTION: Final = "open_transaction"

ORDER = (ERROR, WARNING, NOTE)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that needs attention; word, text and advice are in the active language.

    kind, severity: constants of this module; word: the kind, as a title; text: what was found; advice: what to do about
    it; topic, group, offset: what it concerns, "" and None where it concerns several or none; command: shows more of
    it, or does what is advised.
    """

    kind: str
    severity: str
    word: str
    text: str
    advice: str
    topic: str = ""
    group: str = ""
    offset: int | None = None
    command: str = ""


def about(count: int, estimated: bool) -> str:
    """Return a count as text, with ≈ before an estimate."""
    return ("≈ " if estimated else "") + number_format(count, force_grouping=True)


def at_least(count: int, more: bool) -> str:
    """Return a count as text; more: there are more."""
    return ("≥ " if more else "") + number_format(count, force_grouping=True)
