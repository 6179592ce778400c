"""Judges what needs attention; the overview, `queuedoctor` and the health endpoint show the same findings."""

from __future__ import annotations

from collections.abc import Iterator

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from sqlqueue.core.effects import figures
from sqlqueue.stats import change_texts
from sqlqueue.stats.durations import duration
from sqlqueue.stats.finding_commands import with_commands
from sqlqueue.stats.finding_kinds import (
    AWAY,
    CHANGE,
    DEAD_LETTERS,
    ERROR,
    FAILING_TASK,
    LATE,
    NO_CONSUMERS,
    NOTE,
    OPEN_TRANSACTION,
    ORDER,
    REFUSED,
    SERVERS,
    UNREAD,
    UNWRITABLE,
    WARNING,
    Finding,
    at_least,
)
from sqlqueue.stats.group_attention import of_group
from sqlqueue.stats.groups import GroupSurvey
from sqlqueue.stats.process_attention import of_processes
from sqlqueue.stats.survey import Survey
from sqlqueue.stats.topics import TopicSurvey

OPEN_TOO_LONG = 60.0  # seconds for which a publishing transaction may hold back the horizon
CHANGE_TAKES = 600.0  # seconds that a change of partitions may take
OF_NO_HEARTBEATS = NO_CONSUMERS, AWAY  # which take a process without a heartbeat for one that has ended


def findings(seen: Survey) -> list[Finding]:
    """Return everything that a survey shows to need attention, errors first, then warnings, then notes."""
    found = [*_of_queue(seen)]
    for topic in seen.topics:
        found += _of_topic(topic, [group for group in seen.groups if group.topic == topic.name])
    found += _of_scheduled("", seen.refused_elsewhere, seen.overdue_elsewhere, False, False)
    if seen.writing.fails:  # living processes write none either
        found = [one for one in found if one.kind not in OF_NO_HEARTBEATS]
    return sorted(with_commands(found, seen.database), key=lambda one: ORDER.index(one.severity))


def _of_queue(seen: Survey) -> Iterator[Finding]:
    if seen.writing.fails:
        text = _("The database takes no writes: %(error)s.") % {"error": seen.writing.error.rstrip(".")}
        if not seen.writing.error:
            text = _("The database takes no writes: one has hung for %(age)s.") % {
                "age": duration(seen.writing.hangs_for)
            }
        yield Finding(
            UNWRITABLE,
            ERROR,
            _("No writes"),
            text,
            _(
                "Look at its disk (of a binary log, too), at what it waits for (a backup's lock, a standby), and at "
                "read_only. Publishers fail or wait; consumers wait, and go on by themselves."
            ),
        )
    if len(seen.servers) > 1:
        yield Finding(
            SERVERS,
            ERROR,
            _("Several servers"),
            _("Consumers write to %(count)d database servers: %(servers)s.")
            % {"count": len(seen.servers), "servers": ", ".join(seen.servers)},
            _(
                "What is published through one of them is missed by consumers of another: write to one server only. "
                "(Right after a failover the former one is still named, for LEASE_DURATION.)"
            ),
        )
    for task in seen.failing:
        yield Finding(
            FAILING_TASK,
            ERROR,
            _("Failing task"),
            _("A background task fails again and again: %(task)s") % {"task": task},
            _("The log of its consumer process has the whole error (event=background_task_failed)."),
        )
    yield from of_processes(seen)
    if seen.horizon_age > OPEN_TOO_LONG:
        yield Finding(
            OPEN_TRANSACTION,
            WARNING,
            _("Long transaction"),
            ngettext(
                "A transaction that publishes is open, for at most %(age)s, and holds the horizon back by %(count)d "
                "offset.",
                "A transaction that publishes is open, for at most %(age)s, and holds the horizon back by %(count)d "
                "offsets.",
                seen.horizon_lag,
            )
            % {"age": duration(seen.horizon_age), "count": seen.horizon_lag},
            _("Nothing is lost, but watermarks wait for it. Find it in the database's process list, and end it."),
        )


def _of_topic(topic: TopicSurvey, groups: list[GroupSurvey]) -> Iterator[Finding]:
    for group in groups:
        yield from of_group(group, topic.retention)
    if topic.unread:
        yield Finding(
            UNREAD,
            WARNING,
            _("No reader"),
            _("%(topic)s has messages, and no consumer group: they are collected unread when their retention is over.")
            % {"topic": topic.name},
            _("Start the consumers that read it, register a @consumer for it, or stop publishing to it."),
            topic.name,
        )
    if topic.change is not None:
        late = topic.change.age > CHANGE_TAKES
        yield Finding(
            CHANGE,
            WARNING if late else NOTE,
            _("Being changed"),
            f"{change_texts.what(topic.name, topic.change)} {change_texts.far(topic.change)}",
            change_texts.advice(topic.name, topic.change),
            topic.name,
            command=topic.change.command,
        )
    if unregistered := topic.dead_letters - sum(group.dead_letters for group in groups):
        yield Finding(
            DEAD_LETTERS,
            WARNING,
            _("Dead letters"),
            ngettext(
                "%(topic)s has %(count)s dead letter of a group that is not registered any more.",
                "%(topic)s has %(count)s dead letters of groups that are not registered any more.",
                unregistered,
            )
            % {"topic": topic.name, "count": at_least(unregistered, topic.more_dead_letters)},
            _("Look at why they died. They stay until they are discarded: the group has to exist for a replay."),
            topic.name,
        )
    yield from _of_scheduled(topic.name, topic.refused, topic.overdue, topic.more_refused, topic.more_scheduled)
    for figure in figures():
        if (count := topic.counts.get(figure.name)) and (finding := figure.finding(topic.name, count)) is not None:
            yield finding


def _of_scheduled(topic: str, refused: int, overdue: int, more_refused: bool, more_overdue: bool) -> Iterator[Finding]:
    """Yield the findings of a topic's scheduled messages; topic "": of topics that do not exist."""
    name = topic or _("topics that do not exist")
    if refused:
        yield Finding(
            REFUSED,
            WARNING,
            _("Refused"),
            ngettext(
                "%(count)s scheduled message of %(topic)s was refused by the log.",
                "%(count)s scheduled messages of %(topic)s were refused by the log.",
                refused,
            )
            % {"count": at_least(refused, more_refused), "topic": name},
            _("Each says why, in the admin's list of scheduled messages. Correct it, or delete it."),
            topic,
        )
    if overdue:
        yield Finding(
            LATE,
            WARNING,
            _("Late"),
            ngettext(
                "%(count)s scheduled message of %(topic)s is overdue by a minute or more.",
                "%(count)s scheduled messages of %(topic)s are overdue by a minute or more.",
                overdue,
            )
            % {"count": at_least(overdue, more_overdue), "topic": name},
            _("Consumer processes move them into the log, some hundred at a time: is one running?"),
            topic,
        )
