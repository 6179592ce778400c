"""What needs somebody's attention: in words, with what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from django.utils.formats import number_format
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from sqlqueue.admin.durations import duration
from sqlqueue.observe.survey import GroupSurvey, Survey, TopicSurvey

OPEN_TOO_LONG = 60.0  # seconds for which a publishing transaction may hold back the horizon


@dataclass(frozen=True, slots=True)
class Problem:
    """word: its name; text: what is seen; advice: what to do; offset: of the message that it is about; topic, group:
    the place that it concerns; scheduled: it concerns scheduled messages."""

    word: str
    text: str
    advice: str
    topic: str = ""
    group: str = ""
    offset: int | None = None
    scheduled: bool = False


def problems(seen: Survey) -> Iterator[Problem]:
    """Yield everything that a survey shows to be wrong, the worst first."""
    if seen.groups and not seen.subscribers:
        yield Problem(
            _("Nobody there"),
            _("No consumer process is alive."),
            _("Start “manage.py runconsumers”, or look into its log for why it has ended."),
        )
    if len(seen.servers) > 1:
        yield Problem(
            _("Several servers"),
            _("Consumers write to %(count)d database servers: %(servers)s.")
            % {"count": len(seen.servers), "servers": ", ".join(seen.servers)},
            _(
                "What is published through one of them is missed by consumers of another: write to one server only. "
                "(Right after a failover the former one is still named for a moment.)"
            ),
        )
    for task in seen.failing:
        yield Problem(
            _("Failing task"),
            _("A background task fails again and again: %(task)s") % {"task": task},
            _("The log of its consumer process has the whole error (event=resident_failed)."),
        )
    for group in seen.groups:
        yield from problems_of(group)
    for topic in seen.topics:
        yield from _on_their_way(topic)
    if seen.horizon_age > OPEN_TOO_LONG:
        yield Problem(
            _("Long transaction"),
            _("A transaction that publishes is open, for at most %(age)s, and holds the horizon back.")
            % {"age": duration(seen.horizon_age)},
            _("Nothing is lost, but watermarks wait for it. Find it in the database's process list, and end it."),
        )


def problems_of(group: GroupSurvey) -> Iterator[Problem]:
    """Yield what is wrong with one group."""
    place = {"group": group.group, "topic": group.topic}
    if group.away:
        yield Problem(
            _("Away"),
            ngettext(
                "%(group)s of %(topic)s is away: nobody serves it, %(lag)s message waits for it, and collection waits "
                "for it, too.",
                "%(group)s of %(topic)s is away: nobody serves it, %(lag)s messages wait for it, and collection waits "
                "for it, too.",
                group.lag,
            )
            % (place | {"lag": ("≈ " if group.estimated else "") + number_format(group.lag, force_grouping=True)}),
            _("Start its consumers. If it is not needed any more, remove the group, and collection goes on."),
            group.topic,
            group.group,
        )
    if not group.away:
        for why in ("full", "held", "failing", "standing"):
            yield from _stuck(group, why)
    if group.unowned and group.subscribers:
        yield Problem(
            _("No owner"),
            ngettext(
                "%(count)d partition of %(group)s of %(topic)s has no owner: nobody reads it.",
                "%(count)d partitions of %(group)s of %(topic)s have no owner: nobody reads them.",
                group.unowned,
            )
            % (place | {"count": group.unowned}),
            _("Consumers take them within moments after one has started or died. If that lasts, look into their logs."),
            group.topic,
            group.group,
        )


def _stuck(group: GroupSurvey, why: str) -> Iterator[Problem]:
    stuck = sorted((one for one in group.stuck if one.why == why), key=lambda one: -one.seconds)
    if not stuck:
        return
    worst = stuck[0]
    facts = {
        "group": group.group,
        "topic": group.topic,
        "partition": worst.partition,
        "age": duration(worst.seconds),
    }
    if why == "failing":
        text = _(
            "The watermark of %(group)s of %(topic)s, partition %(partition)d, has stood still for %(age)s: its oldest "
            "message is not done, and is tried again."
        )
        advice = _(
            "Look at the message's error. Mend what it needs and let it be retried, reschedule it, or acknowledge it "
            "on behalf of the group."
        )
    elif why == "full":
        text = _(
            "So many messages of %(group)s of %(topic)s, partition %(partition)d, fail that nothing new is read there: "
            "the oldest has waited for %(age)s."
        )
        advice = _("This group fails: mend its handler, or what it needs. Reading goes on once fewer messages wait.")
    elif why == "held":
        text = _(
            "So many messages of %(group)s of %(topic)s, partition %(partition)d, were delivered beyond a publishing "
            "transaction that is still open that nothing new is read there: the oldest has waited for %(age)s."
        )
        advice = _("Find the transaction in the database's process list, and end it. Reading then goes on by itself.")
    else:
        text = _(
            "The watermark of %(group)s of %(topic)s, partition %(partition)d, has stood still for %(age)s: there is "
            "something to do, and nothing is settled."
        )
        advice = _("See what its owner is doing: a handler may hang, or its database may not answer.")
    text %= facts
    if more := len(stuck) - 1:
        others = ngettext("So has %(count)d more partition.", "So have %(count)d more partitions.", more)
        text = f"{text} {others % {'count': more}}"
    yield Problem(_("Stuck"), text, advice, group.topic, group.group, worst.offset)


def _on_their_way(topic: TopicSurvey) -> Iterator[Problem]:
    if topic.refused:
        yield Problem(
            _("Refused"),
            ngettext(
                "%(count)d scheduled message of %(topic)s was refused by the log.",
                "%(count)d scheduled messages of %(topic)s were refused by the log.",
                topic.refused,
            )
            % {"count": topic.refused, "topic": topic.name},
            _("Each says why. Correct its row and clear the refusal, or delete it."),
            topic.name,
            scheduled=True,
        )
    if topic.overdue:
        yield Problem(
            _("Late"),
            ngettext(
                "%(count)d scheduled message of %(topic)s is overdue.",
                "%(count)d scheduled messages of %(topic)s are overdue.",
                topic.overdue,
            )
            % {"count": topic.overdue, "topic": topic.name},
            _("Consumer processes move them into the log, some hundred at a time: is one running?"),
            topic.name,
            scheduled=True,
        )
