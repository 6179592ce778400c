"""What is said of a topic whose partitions or shards are being changed, in the active language."""

from __future__ import annotations

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from sqlqueue.log.change_state import END, GATE, KEYS, LAST, OTHERS, TRANSACTIONS
from sqlqueue.stats.changes import DONE, UNANNOUNCED, ChangeOnShard, ChangeSurvey
from sqlqueue.stats.durations import duration
from sqlqueue.stats.other_shards import FAILED, SILENT


def what(topic: str, change: ChangeSurvey) -> str:
    """Say what is changed, and since when."""
    names = {"topic": topic, "before": _listed(change.before), "after": _listed(change.after)}
    if change.of_shards:
        text = _("The keys of %(topic)s go over from the shards %(before)s to %(after)s.") % names
    elif change.before == change.after:
        text = _("The change of the partitions of %(topic)s is over, and its publishers learn of that.") % names
    else:
        text = _("The keys of %(topic)s go over from %(before)s partitions to %(after)s others.") % names
    if change.age is None:
        return text
    begun = _("That was begun %(age)s ago.") % {"age": duration(change.age)}
    return f"{text} {begun}"


def far(change: ChangeSurvey) -> str:
    """Say how far each shard is, and what it waits for."""
    return " ".join(f"{one.shard}: {on_shard(one)}" if one.shard else on_shard(one) for one in change.on_shards)


def on_shard(one: ChangeOnShard) -> str:
    """Say how far one shard is, and what it waits for."""
    texts = {
        SILENT: _("It does not answer, and is waited for."),
        FAILED: _("How far it is could not be asked: %(error)s.") % {"error": one.error},
        UNANNOUNCED: _("It has not announced the change to its publishers yet."),
        OTHERS: _("It is ready, and waits until all shards are."),
        TRANSACTIONS: _("It waits for transactions that have published before the change, and are still open."),
        END: _("All keys have gone over; where the former partitions end is still to be stored."),
        DONE: _("All its keys have gone over."),
    }
    if one.stage in texts:
        return texts[one.stage]
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
        "start them, let every shard answer, and end the transactions, which the database's process list shows."
    ) % {"command": change.command}
    if not change.may_abort:
        return text
    abort = _("“python manage.py queuetopic alter %(topic)s --abort” takes it back.") % {"topic": topic}
    return f"{text} {abort}"


def _listed(names: str) -> str:
    return names.replace(",", ", ")
