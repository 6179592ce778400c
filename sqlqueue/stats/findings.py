"""What a finding is, and each kind of them. The overview, `queuedoctor` and the health endpoint show the same."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple

from django.utils.translation import gettext_lazy as _

ERROR: Final = "error"  # something does not work, or soon will not
WARNING: Final = "warning"  # it works, and an operator should look at it
NOTE: Final = "note"  # worth knowing
SEVERITIES = (ERROR, WARNING, NOTE)

WHOLE_QUEUE = "queuestatus"
ONE_TOPIC = "queuestatus --topic {topic}"
ONE_GROUP = "queuestatus --topic {topic} --group {group}"


class Kind(NamedTuple):
    """A kind of findings.

    severity: unless a finding has its own; word: its title; subject: what the doctor lists it under; command: shows
    more of a finding, or does what is advised; without_group: the same for one of no group.
    """

    name: str
    severity: str
    word: Any
    subject: str
    command: str = ONE_TOPIC
    without_group: str = ONE_TOPIC


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that needs attention; text and advice are in the active language.

    text: what was found; advice: what to do about it; topic, group, offset: what it concerns, "" and None where it
    concerns several or none; severity: "" for its kind's; command: shows more of it, or does what is advised.
    """

    kind: Kind
    text: str
    advice: str
    topic: str = ""
    group: str = ""
    offset: int | None = None
    severity: str = ""
    command: str = ""

    def with_command(self, database: str) -> Finding:
        """Return it with its severity and a command that works as it is printed. database: the name of its, "" if
        there is one log only."""
        text = self.kind.command
        if "{group}" in text and not self.group:
            text = self.kind.without_group
        if "{topic}" in text and not self.topic:
            text = WHOLE_QUEUE
        words = [word.format(topic=self.topic, group=self.group) for word in text.split()]
        command = self.command or command_line(words, database)
        return replace(self, severity=self.severity or self.kind.severity, command=command)

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {**asdict(self), "kind": self.kind.name, "word": str(self.kind.word)}


def command_line(words: Iterable[str], database: str) -> str:
    """Return a command as a shell takes it, on this database."""
    at = ["--database", database] if database else []
    return shlex.join(["python", "manage.py", *words, *at])


GROUPS, SCHEDULED = "groups", "scheduled messages"
RUN_GROUP = "runconsumers --topic {topic} --group {group}"
RETRY_NOW = "queuereschedule {topic} {group} --which failing"
REPLAY = "queuedlq replay {topic} --group {group} --trial"

UNWRITABLE = Kind("unwritable", ERROR, _("No writes"), "writes", WHOLE_QUEUE)
NO_CONSUMERS = Kind("no_consumers", WARNING, _("No consumers"), "consumers", "runconsumers")
DEATHS = Kind("deaths", WARNING, _("Processes die"), "consumers", WHOLE_QUEUE)
LATE_HEARTBEATS = Kind("late_heartbeats", WARNING, _("Late heartbeats"), "consumers", WHOLE_QUEUE)
SERVERS = Kind("servers", ERROR, _("Several servers"), "servers", WHOLE_QUEUE)
FAILING_TASK = Kind("failing_task", ERROR, _("Failing task"), "background tasks", "queuedoctor")
OPEN_TRANSACTION = Kind("open_transaction", WARNING, _("Long transaction"), "horizon", WHOLE_QUEUE)
AWAY = Kind("away", WARNING, _("Away"), GROUPS, RUN_GROUP)
PAUSED = Kind("paused", NOTE, _("Paused"), GROUPS, "queueresume {topic} --group {group}")
OUTSIDE_HOURS = Kind("outside_hours", NOTE, _("Outside its hours"), GROUPS, ONE_GROUP)
BUDGET_SPENT = Kind("budget_spent", WARNING, _("Retry budget spent"), GROUPS, ONE_GROUP)
FAILS = Kind("fails", WARNING, _("Fails"), GROUPS, RETRY_NOW)
STUCK = Kind("stuck", WARNING, _("Stuck"), "stuck watermarks", ONE_GROUP)
UNOWNED = Kind("unowned", WARNING, _("No owner"), GROUPS, ONE_GROUP)
BEHIND = Kind("behind", WARNING, _("Behind"), GROUPS, ONE_GROUP)
EPOCH = Kind("epoch", WARNING, _("Earlier epoch"), GROUPS, ONE_GROUP)
CHANGE = Kind("change", NOTE, _("Being changed"), "topics", ONE_TOPIC)
UNREAD = Kind("unread", WARNING, _("No reader"), "topics", ONE_TOPIC)
DEAD_LETTERS = Kind(
    "dead_letters",
    WARNING,
    _("Dead letters"),
    "dead letters",
    REPLAY,
    "queuedlq list --topic {topic}",  # of groups that are not registered any more
)
REFUSED = Kind("refused", WARNING, _("Refused"), SCHEDULED, ONE_TOPIC)
LATE = Kind("late", WARNING, _("Late"), SCHEDULED, ONE_TOPIC)
