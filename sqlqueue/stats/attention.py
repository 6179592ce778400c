"""Judges what needs attention; the overview, `queuedoctor` and the health endpoint show the same findings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from sqlqueue.stats import change_texts, ungranted
from sqlqueue.stats.durations import duration
from sqlqueue.stats.groups import GroupSurvey
from sqlqueue.stats.relays import RelaySurvey
from sqlqueue.stats.sampling import MOST_ROWS
from sqlqueue.stats.survey import Survey
from sqlqueue.stats.topics import TopicSurvey

ERROR: Final = "error"  # something does not work, or soon will not
WARNING: Final = "warning"  # it works, and an operator should look at it
NOTE: Final = "note"  # worth knowing

NO_CONSUMERS: Final = "no_consumers"
SERVERS: Final = "servers"
FAILING_TASK: Final = "failing_task"
AWAY: Final = "away"
PAUSED: Final = "paused"
OUTSIDE_HOURS: Final = "outside_hours"
BUDGET_SPENT: Final = "budget_spent"
STUCK: Final = "stuck"
UNOWNED: Final = "unowned"
BEHIND: Final = "behind"
EPOCH: Final = "epoch"
CHANGE: Final = "change"
UNREGISTERED: Final = "unregistered"
UNGRANTED: Final = "ungranted"
DEAD_LETTERS: Final = "dead_letters"
UNREAD: Final = "unread"
REFUSED: Final = "refused"
LATE: Final = "late"
RELAY_REFUSED: Final = "relay_refused"
RELAY_LATE: Final = "relay_late"
OVERDUE_WORK: Final = "overdue_work"
OPEN_TRANSACTION: Final = "open_transaction"

RELAYED_TOO_LATE = 60.0  # seconds that a message may wait for its way to another shard
OPEN_TOO_LONG = 60.0  # seconds for which a publishing transaction may hold back the horizon
EPOCH_HELD = 3600.0  # seconds for which a group may have something to settle in an earlier epoch, or on a former shard
CHANGE_TAKES = 600.0  # seconds that a change of partitions or shards may take
ORDER = (ERROR, WARNING, NOTE)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that needs attention; word, text and advice are in the active language.

    kind, severity: constants of this module; word: the kind, as a title; text: what was found; advice: what to do about
    it; topic, group, offset: what it concerns, "" and None where it concerns several or none.
    """

    kind: str
    severity: str
    word: str
    text: str
    advice: str
    topic: str = ""
    group: str = ""
    offset: int | None = None


def findings(seen: Survey) -> list[Finding]:
    """Return everything that a survey shows to need attention, errors first, then warnings, then notes."""
    found = [*_of_queue(seen)]
    for topic in seen.topics:
        found += _of_topic(topic, [group for group in seen.groups if group.topic == topic.name])
    found += _of_scheduled("", seen.refused_elsewhere, seen.overdue_elsewhere, False, False)
    for relay in seen.relays:
        found += _of_relay(relay)
    return sorted(found, key=lambda one: ORDER.index(one.severity))


def _of_queue(seen: Survey) -> Iterator[Finding]:
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
    if seen.groups and not seen.subscribers:
        behind = any(group.lag and not group.rests for group in seen.groups)
        yield Finding(
            NO_CONSUMERS,
            WARNING if behind else NOTE,
            _("No consumers"),
            _("No consumer process is alive."),
            _("Start “manage.py runconsumers”, or look into its log for why it has ended."),
        )
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
        late = topic.change.age is None or topic.change.age > CHANGE_TAKES
        yield Finding(
            CHANGE,
            WARNING if late else NOTE,
            _("Being changed"),
            f"{change_texts.what(topic.name, topic.change)} {change_texts.far(topic.change)}",
            change_texts.advice(topic.name, topic.change),
            topic.name,
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
            % {"topic": topic.name, "count": _at_least(unregistered, topic.more_dead_letters)},
            _("Look at why they died. They stay until they are discarded: the group has to exist for a replay."),
            topic.name,
        )
    yield from _of_scheduled(topic.name, topic.refused, topic.overdue, topic.more_refused, topic.more_scheduled)
    if topic.overdue_work:
        yield Finding(
            OVERDUE_WORK,
            NOTE,
            _("Overdue work"),
            ngettext(
                "%(count)s work item of %(topic)s is overdue.",
                "%(count)s work items of %(topic)s are overdue.",
                topic.overdue_work,
            )
            % {"topic": topic.name, "count": _at_least(topic.overdue_work, topic.more_work)},
            _("People should have done them by now. “My work” lists them first."),
            topic.name,
        )


def of_group(group: GroupSurvey, retention: float | None) -> Iterator[Finding]:
    """Yield the findings of one group; retention: its topic's, in seconds, None for ever."""
    names = {"group": group.group, "topic": group.topic}
    lag = ("≈ " if group.estimated else "") + number_format(group.lag, force_grouping=True)
    if group.paused and group.lag:
        yield Finding(
            PAUSED,
            NOTE,
            _("Paused"),
            ngettext(
                "%(group)s of %(topic)s is paused: %(lag)s message waits for it, and collection waits for it, too.",
                "%(group)s of %(topic)s is paused: %(lag)s messages wait for it, and collection waits for it, too.",
                group.lag,
            )
            % {**names, "lag": lag},
            _("Resume the group, or its topic, once what it was paused for is mended."),
            group.topic,
            group.group,
        )
    elif group.outside_hours and group.lag:
        yield Finding(
            OUTSIDE_HOURS,
            NOTE,
            _("Outside its hours"),
            ngettext(
                "%(group)s of %(topic)s is outside its hours (%(hours)s): %(lag)s message waits for them.",
                "%(group)s of %(topic)s is outside its hours (%(hours)s): %(lag)s messages wait for them.",
                group.lag,
            )
            % {**names, "lag": lag, "hours": group.active},
            _("Nothing is to be done. The hours can be changed on the group's page in the admin."),
            group.topic,
            group.group,
        )
    elif group.away and not group.paused:
        yield Finding(
            AWAY,
            WARNING,
            _("Away"),
            ngettext(
                "%(group)s of %(topic)s is away: no consumer process serves it, %(lag)s message waits for it, and "
                "collection waits for it, too.",
                "%(group)s of %(topic)s is away: no consumer process serves it, %(lag)s messages wait for it, and "
                "collection waits for it, too.",
                group.lag,
            )
            % {**names, "lag": lag},
            _("Start its consumers. If it is not needed any more, remove the group, and collection goes on."),
            group.topic,
            group.group,
        )
    elif not group.rests:
        yield from _served(group, retention)
    if group.epochs and group.epochs.held and (group.oldest_age or 0.0) > EPOCH_HELD:
        yield Finding(
            EPOCH,
            WARNING,
            _("Earlier epoch"),
            ngettext(
                "%(group)s of %(topic)s still has messages of epoch %(present)d, the oldest for %(age)s: %(count)d "
                "partition of later epochs waits for them, and the epoch is kept.",
                "%(group)s of %(topic)s still has messages of epoch %(present)d, the oldest for %(age)s: %(count)d "
                "partitions of later epochs wait for them, and the epoch is kept.",
                group.epochs.waiting,
            )
            % {
                **names,
                "present": group.epochs.present,
                "age": duration(group.oldest_age or 0.0),
                "count": group.epochs.waiting,
            },
            _("Start its consumers, or see what holds it up. If it is not needed any more, remove it."),
            group.topic,
            group.group,
        )
    yield from _of_former_shards(group)
    if group.dead_letters:
        yield Finding(
            DEAD_LETTERS,
            WARNING,
            _("Dead letters"),
            ngettext(
                "%(group)s of %(topic)s has %(count)s dead letter.",
                "%(group)s of %(topic)s has %(count)s dead letters.",
                group.dead_letters,
            )
            % {**names, "count": _at_least(group.dead_letters, group.more_dead_letters)},
            _("Look at why they died. Mend the handler, or what it needs, and replay them; or discard them."),
            group.topic,
            group.group,
        )


def _of_former_shards(group: GroupSurvey) -> Iterator[Finding]:
    """Yield the findings of a group that may not start what has come from other shards."""
    names = {"group": group.group, "topic": group.topic}
    for one in group.unregistered:
        yield Finding(
            UNREGISTERED,
            ERROR,
            _("Missing on a shard"),
            _(
                "%(group)s of %(topic)s is not registered on shard %(shard)s, and starts nothing of what has come from "
                "there."
            )
            % {**names, "shard": one.shard},
            _(
                "Let its consumers serve that shard, too, which registers it: “manage.py runconsumers --shard "
                "%(shard)s”. If it is not needed any more, remove it here: “manage.py queuegroup remove %(topic)s "
                "%(group)s”."
            )
            % {**names, "shard": one.shard},
            group.topic,
            group.group,
        )
    for one in group.ungranted:
        if one.why == ungranted.FAILED:
            yield Finding(
                UNGRANTED,
                WARNING,
                _("Waits for a shard"),
                _(
                    "%(group)s of %(topic)s has not started what has come from shard %(shard)s, and what it waits for "
                    "could not be asked there: %(error)s."
                )
                % {**names, "shard": one.shard, "error": one.error},
                _("Migrate that shard, and let the database's user read its tables."),
                group.topic,
                group.group,
            )
    late = [one for one in group.ungranted if one.why in (ungranted.BEHIND, ungranted.SILENT) and one.age > EPOCH_HELD]
    if late:
        yield Finding(
            UNGRANTED,
            WARNING,
            _("Waits for a shard"),
            _(
                "%(group)s of %(topic)s has waited for %(age)s to start what has come from the shards %(shards)s, for "
                "it has not settled all that is there, or they do not answer."
            )
            % {**names, "age": duration(max(one.age for one in late)), "shards": ", ".join(one.shard for one in late)},
            _("See its lag on those shards: start its consumers there, or see what holds it up."),
            group.topic,
            group.group,
        )


def _served(group: GroupSurvey, retention: float | None) -> Iterator[Finding]:
    """Yield the findings of a group that neither rests nor is away."""
    names = {"group": group.group, "topic": group.topic}
    if group.budget_spent:
        yield Finding(
            BUDGET_SPENT,
            WARNING,
            _("Retry budget spent"),
            _("So much of %(group)s of %(topic)s has failed that it tries one message at a time.") % names,
            _("Look at the errors. It works on as before once one message has succeeded."),
            group.topic,
            group.group,
        )
    for why in ("full", "held", "failing", "standing"):
        yield from _stuck(group, why)
    if group.unowned and group.subscribers:
        yield Finding(
            UNOWNED,
            WARNING,
            _("No owner"),
            ngettext(
                "%(count)d partition of %(group)s of %(topic)s has no owner: it is not read.",
                "%(count)d partitions of %(group)s of %(topic)s have no owner: they are not read.",
                group.unowned,
            )
            % (names | {"count": group.unowned}),
            _("Consumers take them within moments after one has started or died. If that lasts, look into their logs."),
            group.topic,
            group.group,
        )
    if retention is not None and (group.waited or 0.0) > retention:
        yield Finding(
            BEHIND,
            WARNING,
            _("Behind"),
            _("%(group)s of %(topic)s is behind by %(age)s, longer than messages are to be kept (%(retention)s).")
            % (names | {"age": duration(group.oldest_age or 0.0), "retention": duration(retention)}),
            _("The log grows until it has caught up: more processes or threads, or see what is slow (queuestatus)."),
            group.topic,
            group.group,
        )


def _stuck(group: GroupSurvey, why: str) -> Iterator[Finding]:
    stuck = sorted((one for one in group.stuck if one.why == why), key=lambda one: -one.seconds)
    if not stuck:
        return
    worst = stuck[0]
    text, advice = _why_stuck(why)
    text %= {
        "group": group.group,
        "topic": group.topic,
        "partition": worst.partition,
        "offset": worst.offset,
        "age": duration(worst.seconds),
    }
    if more := len(stuck) - 1:
        others = ngettext("So has %(count)d more partition.", "So have %(count)d more partitions.", more)
        text = f"{text} {others % {'count': more}}"
    severity = ERROR if why == "full" else WARNING
    yield Finding(STUCK, severity, _("Stuck"), text, advice, group.topic, group.group, worst.offset)


def _why_stuck(why: str) -> tuple[str, str]:
    """Return text (with placeholders) and advice for a watermark that stands still."""
    if why == "failing":
        return _(
            "The watermark of %(group)s of %(topic)s, partition %(partition)d, has stood still for %(age)s: its oldest "
            "message, at offset %(offset)d, fails again and again, and is retried."
        ), _(
            "Look at the message's error. Mend what it needs and let it be retried, reschedule it, or acknowledge it "
            "on behalf of the group."
        )
    if why == "full":
        return _(
            "So many messages of %(group)s of %(topic)s, partition %(partition)d, fail that nothing new is read there: "
            "the oldest, at offset %(offset)d, has waited for %(age)s."
        ), _("This group fails: mend its handler, or what it needs. Reading goes on once fewer messages wait.")
    if why == "held":
        return _(
            "So many messages of %(group)s of %(topic)s, partition %(partition)d, were delivered beyond a publishing "
            "transaction that is still open that nothing new is read there: the oldest, at offset %(offset)d, has "
            "waited for %(age)s."
        ), _("Find the transaction in the database's process list, and end it. Reading then goes on by itself.")
    return _(
        "The watermark of %(group)s of %(topic)s, partition %(partition)d, has stood still at offset %(offset)d for "
        "%(age)s: there is something to do, and nothing is settled."
    ), _("See what its owner is doing: a handler may hang, or its database may not answer.")


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
            % {"count": _at_least(refused, more_refused), "topic": name},
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
            % {"count": _at_least(overdue, more_overdue), "topic": name},
            _("Consumer processes move them into the log, some hundred at a time: is one running?"),
            topic,
        )


def _of_relay(relay: RelaySurvey) -> Iterator[Finding]:
    """Yield the findings of what waits for its way to another shard."""
    if relay.refused:
        yield Finding(
            RELAY_REFUSED,
            WARNING,
            _("Refused by a shard"),
            ngettext(
                "%(count)s relayed message was refused by shard %(shard)s.",
                "%(count)s relayed messages were refused by shard %(shard)s.",
                relay.refused,
            )
            % {"count": _at_least(relay.refused, relay.refused >= MOST_ROWS), "shard": relay.shard},
            _("Each says why, in the admin's list of relayed messages. Correct it, try it again, or discard it."),
        )
    if relay.age > RELAYED_TOO_LATE:
        yield Finding(
            RELAY_LATE,
            WARNING,
            _("Not relayed"),
            ngettext(
                "%(count)s message has waited for its way to shard %(shard)s, for %(age)s.",
                "%(count)s messages have waited for their way to shard %(shard)s, the oldest for %(age)s.",
                relay.waiting,
            )
            % {
                "count": _at_least(relay.waiting, relay.waiting >= MOST_ROWS),
                "shard": relay.shard,
                "age": duration(relay.age),
            },
            _("Consumer processes of this shard move them: is one running, and does the other shard answer?"),
        )


def _at_least(count: int, more: bool) -> str:
    return ("≥ " if more else "") + number_format(count, force_grouping=True)
