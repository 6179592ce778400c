"""Judges what needs attention of a group."""

from __future__ import annotations

from collections.abc import Iterator

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from sqlqueue.stats.findings import (
    AWAY,
    BEHIND,
    BUDGET_SPENT,
    DEAD_LETTERS,
    EPOCH,
    ERROR,
    FAILS,
    OUTSIDE_HOURS,
    PAUSED,
    STUCK,
    UNOWNED,
    WARNING,
    Finding,
)
from sqlqueue.stats.groups import GroupSurvey
from sqlqueue.stats.texts import about, at_least, duration

MUCH_FAILS = 0.5  # of the attempts of the last minutes, from when on that is reported
EPOCH_HELD = 3600.0  # seconds for which a group may have something to settle in an earlier epoch


def group_findings(group: GroupSurvey, retention: float | None) -> Iterator[Finding]:
    """Yield the findings of one group; retention: its topic's, in seconds, None for ever."""
    names = {"group": group.group, "topic": group.topic}
    lag = about(group.lag, group.estimated)
    if group.paused and group.lag:
        yield Finding(
            PAUSED,
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
    if group.waiting_partitions and (group.oldest_age or 0.0) > EPOCH_HELD:
        yield Finding(
            EPOCH,
            ngettext(
                "%(count)d partition of %(group)s of %(topic)s waits for an earlier epoch, which is kept: the oldest "
                "message has waited for %(age)s.",
                "%(count)d partitions of %(group)s of %(topic)s wait for an earlier epoch, which is kept: the oldest "
                "message has waited for %(age)s.",
                group.waiting_partitions,
            )
            % {**names, "age": duration(group.oldest_age or 0.0), "count": group.waiting_partitions},
            _("Start its consumers, or see what holds it up. If it is not needed any more, remove it."),
            group.topic,
            group.group,
        )
    if group.dead_letters:
        yield Finding(
            DEAD_LETTERS,
            ngettext(
                "%(group)s of %(topic)s has %(count)s dead letter.",
                "%(group)s of %(topic)s has %(count)s dead letters.",
                group.dead_letters,
            )
            % {**names, "count": at_least(group.dead_letters, group.more_dead_letters)},
            _("Look at why they died. Mend the handler, or what it needs, and replay them; or discard them."),
            group.topic,
            group.group,
        )


def _served(group: GroupSurvey, retention: float | None) -> Iterator[Finding]:
    """Yield the findings of a group that neither rests nor is away."""
    names = {"group": group.group, "topic": group.topic}
    if group.budget_spent:
        yield Finding(
            BUDGET_SPENT,
            _("So much of %(group)s of %(topic)s has failed that it tries one message at a time.") % names,
            _("Look at the errors. It works on as before once one message has succeeded."),
            group.topic,
            group.group,
        )
    elif (group.rate.failed_share or 0.0) >= MUCH_FAILS:
        yield Finding(
            FAILS,
            _("%(share)d %% of the attempts of %(group)s of %(topic)s have failed in the last minutes.")
            % {"group": group.group, "topic": group.topic, "share": 100 * (group.rate.failed_share or 0.0)},
            _(
                "Look at the errors in the log, and mend the handler, or what it needs. Then let what has failed be "
                "tried at once: by its last attempt it becomes a dead letter."
            ),
            group.topic,
            group.group,
        )
    for why in ("full", "held", "failing", "standing"):
        yield from _stuck(group, why)
    if group.unowned and group.subscribers:
        yield Finding(
            UNOWNED,
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
    yield Finding(STUCK, text, advice, group.topic, group.group, worst.offset, severity)


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
    ), _(
        "See what its owner is doing: handlers of other groups may take all its threads, a handler may hang, or its "
        "database may not answer."
    )
