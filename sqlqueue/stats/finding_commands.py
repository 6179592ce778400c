"""Names for each finding the command that shows more of it, or does what is advised. It works as it is printed."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace

from sqlqueue.stats import finding_kinds as kinds
from sqlqueue.stats.finding_kinds import Finding

OF_ALL = "queuestatus"
OF_TOPIC = "queuestatus --topic {topic}"
OF_GROUP = "queuestatus --topic {topic} --group {group}"
COMMANDS = {
    kinds.UNWRITABLE: OF_ALL,
    kinds.NO_CONSUMERS: "runconsumers",
    kinds.DEATHS: OF_ALL,
    kinds.LATE_HEARTBEATS: OF_ALL,
    kinds.SERVERS: OF_ALL,
    kinds.FAILING_TASK: "queuedoctor",
    kinds.OPEN_TRANSACTION: OF_ALL,
    kinds.AWAY: "runconsumers --topic {topic} --group {group}",
    kinds.PAUSED: "queueresume {topic} --group {group}",
    kinds.OUTSIDE_HOURS: OF_GROUP,
    kinds.BUDGET_SPENT: OF_GROUP,
    kinds.FAILS: "queuereschedule order {topic} {group} --which failing",
    kinds.FALLS_BEHIND: OF_GROUP,
    kinds.STUCK: OF_GROUP,
    kinds.UNOWNED: OF_GROUP,
    kinds.BEHIND: OF_GROUP,
    kinds.EPOCH: OF_GROUP,
    kinds.CHANGE: OF_TOPIC,
    kinds.UNREAD: OF_TOPIC,
    kinds.DEAD_LETTERS: "queuedlq replay {topic} --group {group} --trial",
    kinds.REFUSED: OF_TOPIC,
    kinds.LATE: OF_TOPIC,
}
OF_NO_GROUP = {kinds.DEAD_LETTERS: "queuedlq list --topic {topic}"}  # of groups that are not registered any more


def with_commands(findings: Iterable[Finding], database: str) -> Iterator[Finding]:
    """Yield the findings, each with its command. database: the name of theirs, "" if there is one log only."""
    for one in findings:
        text = COMMANDS.get(one.kind, OF_TOPIC)  # else of an effect
        if "{group}" in text and not one.group:
            text = OF_NO_GROUP[one.kind]
        if "{topic}" in text and not one.topic:
            text = OF_ALL
        words = [word.format(topic=one.topic, group=one.group) for word in text.split()]
        yield replace(one, command=one.command or command_line(words, database))


def command_line(words: Iterable[str], database: str) -> str:
    """Return a command as a shell takes it, on this database."""
    at = ["--database", database] if database else []
    return shlex.join(["python", "manage.py", *words, *at])
