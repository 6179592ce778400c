"""Judges what needs attention of the consumer processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from sqlqueue.core.exits import exit_name
from sqlqueue.stats.durations import duration
from sqlqueue.stats.finding_kinds import DEATHS, ERROR, LATE_HEARTBEATS, NO_CONSUMERS, NOTE, WARNING, Finding

if TYPE_CHECKING:
    from sqlqueue.stats.survey import Survey

SHOWN = 3  # processes


def of_processes(seen: Survey) -> Iterator[Finding]:
    """Yield the findings of the consumer processes."""
    if seen.deaths:
        yield _deaths(seen)
    elif seen.groups and not seen.subscribers:
        behind = any(group.lag and not group.rests for group in seen.groups)
        yield Finding(
            NO_CONSUMERS,
            WARNING if behind else NOTE,
            _("No consumers"),
            _("No consumer process is alive."),
            _("Start “python manage.py runconsumers”, or look into its log for why it has ended."),
        )
    if seen.late:
        names = ", ".join(one.subscriber for one in seen.late[:SHOWN]) + (", …" if len(seen.late) > SHOWN else "")
        yield Finding(
            LATE_HEARTBEATS,
            WARNING,
            _("Late heartbeats"),
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
    return Finding(DEATHS, ERROR if not seen.subscribers else WARNING, _("Processes die"), text, advice)
