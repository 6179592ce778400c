"""What a person has to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from django.db.models import Q

from sqlqueue.contrib.people.models import UNFINISHED, WorkItem
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.database.log import Log

MOST_LISTED = 50  # items of a section
HEAVY = ("payload", "headers", "body", "form", "result")
OVERDUE, OWN, LATER, TEAM, UNASSIGNED = "overdue", "own", "later", "team", "unassigned"


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
        (OVERDUE, Q(due_at__lte=DatabaseNow()), "due_at"),  # index: (state, due_at)
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
