"""Judges what needs attention of a group's last minutes: much of it fails, or it falls behind."""

from __future__ import annotations

from collections.abc import Iterator

from django.utils.formats import number_format
from django.utils.translation import gettext as _

from sqlqueue.stats.durations import duration
from sqlqueue.stats.finding_kinds import FAILS, FALLS_BEHIND, WARNING, Finding, about
from sqlqueue.stats.groups import GroupSurvey

MUCH_FAILS = 0.5  # of the attempts of the last minutes, from when on that is reported
MUCH_LAG = 100_000  # messages, from when on it is reported that their number grows
OLD = 600.0  # seconds that the oldest message has waited, from when on it is reported that it gets older


def fails(group: GroupSurvey) -> Iterator[Finding]:
    """Yield the finding of a group whose attempts fail, before they are dead letters."""
    if (group.rate.failed_share or 0.0) >= MUCH_FAILS:
        yield Finding(
            FAILS,
            WARNING,
            _("Fails"),
            _("%(share)d %% of the attempts of %(group)s of %(topic)s have failed in the last minutes.")
            % {"group": group.group, "topic": group.topic, "share": 100 * (group.rate.failed_share or 0.0)},
            _(
                "Look at the errors in the log, and mend the handler, or what it needs. Then let what has failed be "
                "tried at once: by its last attempt it becomes a dead letter."
            ),
            group.topic,
            group.group,
        )


def falls_behind(group: GroupSurvey) -> Iterator[Finding]:
    """Yield the finding of a group that gets on, and whose lag is large and grows, or whose oldest message is old and
    gets older."""
    ages = group.rate.ages and (group.waited or 0.0) > OLD
    if not group.stuck and (ages or (group.rate.grows and group.lag > MUCH_LAG)):
        yield Finding(
            FALLS_BEHIND,
            WARNING,
            _("Falls behind"),
            _(
                "%(group)s of %(topic)s falls further and further behind: it settles %(pace)s messages a minute, the "
                "oldest has waited for %(age)s, and the lag is %(lag)s."
            )
            % {
                "group": group.group,
                "topic": group.topic,
                "pace": number_format(round(60 * group.rate.acked), force_grouping=True),
                "age": duration(group.waited or 0.0),
                "lag": about(group.lag, group.estimated),
            },
            _("Give it more processes or threads, or see what its handler waits for, and what limits it has."),
            group.topic,
            group.group,
        )
