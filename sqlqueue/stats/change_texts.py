"""What is said of a topic whose partitions are being changed, in the active language."""

from __future__ import annotations

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from sqlqueue.log.change_state import END, GATE, KEYS, LAST, TRANSACTIONS
from sqlqueue.stats.changes import ChangeSurvey
from sqlqueue.stats.durations import duration


def what(topic: str, change: ChangeSurvey) -> str:
    """Say what is changed, and since when."""
    names = {"topic": topic, "before": change.before, "after": change.after}
    if change.before == change.after:
        text = _("The change of the partitions of %(topic)s is over, and its publishers learn of that.") % names
    else:
        text = _("The keys of %(topic)s go over from %(before)s partitions to %(after)s others.") % names
    begun = _("That was begun %(age)s ago.") % {"age": duration(change.age)}
    return f"{text} {begun}"


def far(change: ChangeSurvey) -> str:
    """Say how far it is, and what it waits for."""
    one = change.progress
    if one.stage == TRANSACTIONS:
        return _("It waits for transactions that have published before the change, and are still open.")
    if one.stage == END:
        return _("All keys have gone over; where the former partitions end is still to be stored.")
    assert one.stage in (GATE, KEYS, LAST)
    if one.stage == KEYS:
        return ngettext(
            "%(left)d of %(of)d parts of its keys has not gone over: it waits for transactions that have published "
            "and are still open.",
            "%(left)d of %(of)d parts of its keys have not gone over: they wait for transactions that have published "
            "and are still open.",
            one.left,
        ) % {"left": one.left, "of": one.of}
    return ngettext(
        "%(left)d of %(of)d parts of its publishers does not know of it yet: it waits for transactions that have "
        "published and are still open.",
        "%(left)d of %(of)d parts of its publishers do not know of it yet: they wait for transactions that have "
        "published and are still open.",
        one.left,
    ) % {"left": one.left, "of": one.of}


def advice(topic: str, change: ChangeSurvey) -> str:
    """Say what can be done."""
    text = _(
        "Nothing is lost or held up. Consumer processes carry it on, and so does “%(command)s”. If it stands still: "
        "start them, and end the transactions, which the database's process list shows."
    ) % {"command": change.command}
    if not change.may_abort:
        return text
    abort = _("“python manage.py queuetopic alter %(topic)s --abort” takes it back.") % {"topic": topic}
    return f"{text} {abort}"
