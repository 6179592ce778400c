"""Which pages read the replica, SQLQUEUE["READ_ALIAS"]: lists, the overview and its charts, and searches.

A page of one row, a form, a preview and a confirmation read the queue's own database, since what a person decides there
must not follow from old figures. So do a person's lists for a while after that person changed something, so that the
change is seen.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from django.http import HttpRequest

from sqlqueue.conf import settings
from sqlqueue.stats.durations import duration
from sqlqueue.stats.replica import newest_heartbeat

CHANGED = "sqlqueue_changed"  # in the session: when its user last changed something, by the web server's clock
OWN_CHANGE_SEEN = 60.0  # seconds after a change for which its user's lists are read from the queue's own database


class Replica(NamedTuple):
    """What a page says of the replica that it was read from. behind: the age of the newest heartbeat there, as a text;
    "" if there is none."""

    alias: str
    behind: str


def list_alias(request: HttpRequest) -> str:
    """Return the alias that a list, a chart or a search is read from."""
    alias = settings.reading_alias
    if alias == settings.DATABASE or request.method not in ("GET", "HEAD"):
        return str(settings.DATABASE)
    changed = request.session.get(CHANGED)
    recently = changed is not None and abs(time.time() - changed) < OWN_CHANGE_SEEN
    return str(settings.DATABASE) if recently else alias


def replica(alias: str) -> Replica | None:
    """Return what the page says that was read from an alias; None unless it is the replica."""
    if not settings.is_replica(alias):
        return None
    age = newest_heartbeat(alias)
    return Replica(alias, "" if age is None else duration(age))


def remember_change(request: HttpRequest) -> None:
    """Let the user see on lists what was changed: these are read from the queue's own database for a while."""
    if settings.is_replica(settings.reading_alias):
        request.session[CHANGED] = time.time()
