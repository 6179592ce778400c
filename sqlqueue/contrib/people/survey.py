"""Reads what people have not done: how much of each topic, and what a person has to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from django.db.models import Q
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from sqlqueue.contrib.people.models import UNFINISHED, WorkItem
from sqlqueue.core.effects import Count, Figure
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.database.log import Log
from sqlqueue.stats import counting
from sqlqueue.stats.findings import NOTE, ONE_TOPIC, Finding, Kind
from sqlqueue.stats.texts import at_least

OVERDUE_NAME = "overdue_work_items"
OVERDUE_WORK = Kind(OVERDUE_NAME, NOTE, gettext_lazy("Overdue work"), "work items", ONE_TOPIC)
# Index: (state, topic); (state, due_at).
OPEN = """
    SELECT 0, topic, COUNT(*) FROM (SELECT topic FROM sqlqueue_work_item WHERE state = %s{of} LIMIT %s)
    AS open_items GROUP BY topic
"""
OVERDUE = """
    SELECT 1, topic, COUNT(*) FROM (SELECT topic FROM sqlqueue_work_item WHERE state = %s AND due_at <= {now}{of}
    ORDER BY due_at LIMIT %s) AS late_items GROUP BY topic
"""


def _open(found: Count) -> str:
    text = ngettext("%(count)s open work item", "%(count)s open work items", found.count)
    return text % {"count": at_least(found.count, found.more)}


def _overdue(found: Count) -> str:
    text = ngettext("%(count)s overdue work item", "%(count)s overdue work items", found.count)
    return text % {"count": at_least(found.count, found.more)}


def _finding(topic: str, found: Count) -> Finding | None:
    if not found.count:
        return None
    text = ngettext(
        "%(count)s work item of %(topic)s is overdue.", "%(count)s work items of %(topic)s are overdue.", found.count
    )
    return Finding(
        OVERDUE_WORK,
        text % {"topic": topic, "count": at_least(found.count, found.more)},
        _("People should have done them by now. “My work” lists them first."),
        topic,
    )


OPEN_ITEMS = Figure("open_work_items", "Work items that people have not done.", _open, lost=True)
OVERDUE_ITEMS = Figure(OVERDUE_NAME, "Open work items whose time is over.", _overdue, _finding)
FIGURES = (OPEN_ITEMS, OVERDUE_ITEMS)


def open_work(log: Log, topics: Sequence[str]) -> dict[str, dict[str, Count]]:
    """Count up to counting.MOST_ROWS items of each state, and as many that are overdue, those of a topic's dead letters
    with its own; of a single topic its own alone. One statement."""
    branch = log.dialect.branch
    names = [topics[0], topics[0] + DEAD_LETTER_SUFFIX] if len(topics) == 1 else []
    of = " AND topic IN (%s, %s)" if names else ""
    selects = [branch.format(text.strip().replace("{of}", of)) for text in (OPEN, OVERDUE) for _ in UNFINISHED]
    values = [value for state in (*UNFINISHED, *UNFINISHED) for value in (state, *names, counting.MOST_ROWS)]
    counts: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    for late, topic, count in log.execute(" UNION ALL ".join(selects), values).fetchall():
        counts[late][topic.removesuffix(DEAD_LETTER_SUFFIX)] += count
    more = any(each.total() >= counting.MOST_ROWS for each in counts)
    figures = [figure.name for figure in FIGURES]
    return {topic: {name: Count(each[topic], more) for name, each in zip(figures, counts)} for topic in topics}


# -- a person's own ---------------------------------------------------------------------------------------------------

MOST_LISTED = 50  # items of a section
HEAVY = ("payload", "headers", "body", "form", "result")
LATE, OWN, LATER, TEAM, UNASSIGNED = "overdue", "own", "later", "team", "unassigned"


class Section(NamedTuple):
    """A part of a person's page. items: at most MOST_LISTED; more: there are more."""

    name: str
    items: Sequence[WorkItem]
    more: bool


def own_work(log: Log, user: str, teams: Sequence[str], closed: Sequence[str]) -> list[Section]:
    """Return what a user has to do, and may take on: what is overdue, what the user has, what the user has put off,
    what others have in the user's teams, what no user has. teams: the topics of the user's teams; closed: those that
    the user may not see. An item is in one section, or in that of the overdue as well."""
    mine, put_off = Q(assignee=user), Q(deferred_until__gt=DatabaseNow())
    chosen: list[tuple[str, Any, str]] = [
        (LATE, Q(due_at__lte=DatabaseNow()), "due_at"),  # index: (state, due_at)
        (OWN, mine & ~(put_off & Q(deferred_until__isnull=False)), "state"),  # index: (state, assignee)
        (LATER, mine & put_off, "deferred_until"),
        (TEAM, Q(topic__in=teams) & ~mine & ~Q(assignee=""), "state"),  # index: (state, topic)
        (UNASSIGNED, Q(assignee=""), "state"),
    ]
    rows = WorkItem.objects.using(log.alias).defer(*HEAVY).filter(state__in=UNFINISHED).exclude(topic__in=closed)
    found = []
    # Not by the primary key alone: a database may then rather walk through all that is done than sort what is not.
    for name, condition, order in chosen:
        items = (
            [] if name == TEAM and not teams else list(rows.filter(condition).order_by(order, "pk")[: MOST_LISTED + 1])
        )
        found.append(Section(name, items[:MOST_LISTED], len(items) > MOST_LISTED))
    return found
