"""Judges what needs attention; the overview, `queuedoctor` and the health endpoint show the same findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from sqlqueue.core.effects import figures
from sqlqueue.core.forks import exit_name
from sqlqueue.stats.findings import (
    AWAY,
    CHANGE,
    DEAD_LETTERS,
    DEATHS,
    ERROR,
    FAILING_TASK,
    LATE,
    LATE_HEARTBEATS,
    NO_CONSUMERS,
    NOTE,
    OPEN_TRANSACTION,
    REFUSED,
    SERVERS,
    SEVERITIES,
    UNREAD,
    UNWRITABLE,
    WARNING,
    Finding,
)
from sqlqueue.stats.group_attention import group_findings
from sqlqueue.stats.groups import GroupSurvey
from sqlqueue.stats.survey import Survey
from sqlqueue.stats.texts import at_least, duration
from sqlqueue.stats.topics import TopicSurvey, change_advice, change_text, progress_text

OPEN_TOO_LONG = 60.0  # seconds for which a publishing transaction may hold back the horizon
CHANGE_TAKES = 600.0  # seconds that a change of partitions may take
SHOWN = 3  # late processes
OF_NO_HEARTBEATS = NO_CONSUMERS, AWAY  # which take a process without a heartbeat for one that has ended


def findings(seen: Survey) -> list[Finding]:
    """Return everything that a survey shows to need attention, errors first, then warnings, then notes."""
    found = [*_of_queue(seen)]
    for topic in seen.topics:
        found += _of_topic(topic, [group for group in seen.groups if group.topic == topic.name])
    found += _of_scheduled("", seen.refused_elsewhere, seen.overdue_elsewhere, False, False)
    if seen.writing.fails:  # living processes write none either
        found = [one for one in found if one.kind not in OF_NO_HEARTBEATS]
    return _sorted(found, seen)


def findings_of_group(seen: Survey, group: GroupSurvey) -> list[Finding]:
    """Return what needs attention of one group of a survey."""
    retention = next((topic.retention for topic in seen.topics if topic.name == group.topic), None)
    return _sorted(group_findings(group, retention), seen)


def _sorted(found: Iterable[Finding], seen: Survey) -> list[Finding]:
    named = [one.with_command(seen.database) for one in found]
    return sorted(named, key=lambda one: SEVERITIES.index(one.severity))


def _of_queue(seen: Survey) -> Iterator[Finding]:
    if seen.writing.fails:
        text = _("The database takes no writes: %(error)s.") % {"error": seen.writing.error.rstrip(".")}
        if not seen.writing.error:
            text = _("The database takes no writes: one has hung for %(age)s.") % {
                "age": duration(seen.writing.hangs_for)
            }
        yield Finding(
            UNWRITABLE,
            text,
            _(
                "Look at its disk (of a binary log, too), at what it waits for (a backup's lock, a standby), and at "
                "read_only. Publishers fail or wait; consumers wait, and go on by themselves."
            ),
        )
    if len(seen.servers) > 1:
        yield Finding(
            SERVERS,
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
            _("A background task fails again and again: %(task)s") % {"task": task},
            _("The log of its consumer process has the whole error (event=background_task_failed)."),
        )
    yield from _of_processes(seen)
    if seen.horizon_age > OPEN_TOO_LONG:
        yield Finding(
            OPEN_TRANSACTION,
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
        yield from group_findings(group, topic.retention)
    if topic.unread:
        yield Finding(
            UNREAD,
            _("%(topic)s has messages, and no consumer group: they are collected unread when their retention is over.")
            % {"topic": topic.name},
            _("Start the consumers that read it, register a @consumer for it, or stop publishing to it."),
            topic.name,
        )
    if topic.change is not None:
        yield Finding(
            CHANGE,
            f"{change_text(topic.name, topic.change)} {progress_text(topic.change.progress)}",
            change_advice(topic.name, topic.change),
            topic.name,
            severity=WARNING if topic.change.age > CHANGE_TAKES else NOTE,
            command=topic.change.command,
        )
    if unregistered := topic.dead_letters - sum(group.dead_letters for group in groups):
        yield Finding(
            DEAD_LETTERS,
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
            ngettext(
                "%(count)s scheduled message of %(topic)s is overdue by a minute or more.",
                "%(count)s scheduled messages of %(topic)s are overdue by a minute or more.",
                overdue,
            )
            % {"count": at_least(overdue, more_overdue), "topic": name},
            _("Consumer processes move them into the log, some hundred at a time: is one running?"),
            topic,
        )


def _of_processes(seen: Survey) -> Iterator[Finding]:
    """Yield the findings of the consumer processes."""
    if seen.deaths:
        yield _deaths(seen)
    elif seen.groups and not seen.subscribers:
        behind = any(group.lag and not group.rests for group in seen.groups)
        yield Finding(
            NO_CONSUMERS,
            _("No consumer process is alive."),
            _("Start “python manage.py runconsumers”, or look into its log for why it has ended."),
            severity=WARNING if behind else NOTE,
        )
    if seen.late:
        names = ", ".join(one.subscriber for one in seen.late[:SHOWN]) + (", …" if len(seen.late) > SHOWN else "")
        yield Finding(
            LATE_HEARTBEATS,
            ngettext(
                "%(count)d consumer process has written no heartbeat for %(age)s: %(names)s.",
                "%(count)d consumer processes have written no heartbeat, one for %(age)s: %(names)s.",
                len(seen.late),
            )
            % {"count": len(seen.late), "age": duration(seen.late[0].seconds), "names": names},
            _(
                "It hangs, or has ended without a word, or its writes to the database take too long: after "
                "LEASE_DURATION other processes take over what it served."
            ),
        )


def _deaths(seen: Survey) -> Finding:
    """Say how processes died, what they had in flight, and when the next one is started."""
    last, count = seen.deaths[0], len(seen.deaths)
    text = ngettext(
        "%(count)d consumer process has died (%(exit)s), %(age)s ago: %(subscriber)s.",
        "%(count)d consumer processes have died, the last one (%(exit)s) %(age)s ago: %(subscriber)s.",
        count,
    ) % {
        "count": count,
        "exit": exit_name(last.exit_status),
        "age": duration(max(0.0, (seen.taken_at - last.at).total_seconds())),
        "subscriber": last.subscriber,
    }
    if last.in_doubt:
        text += " " + _("In doubt is %(messages)s.") % {"messages": last.in_doubt}
    if (wait := (last.restart_at - seen.taken_at).total_seconds()) > 0:
        text += " " + _("The next one is started in %(wait)s.") % {"wait": duration(wait)}
    advice = _("Its supervisor's log has each death (event=process_died).")
    if last.exit_status == -9:
        advice = (
            _(
                "SIGKILL is what the kernel sends when memory runs out. Give the processes more memory, or let the "
                "handler take less: a message in doubt is tried alone, and is a dead letter after a few deaths."
            )
            + f" {advice}"
        )
    return Finding(DEATHS, text, advice, severity=ERROR if not seen.subscribers else WARNING)
