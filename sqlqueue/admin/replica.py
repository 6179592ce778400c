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
from sqlqueue.database.log import Log, current_log, reading_log
from sqlqueue.stats.durations import duration
from sqlqueue.stats.replica import newest_heartbeat

CHANGED = "sqlqueue_changed"  # in the session: when its user last changed something, by the web server's clock
OWN_CHANGE_SEEN = 60.0  # seconds after a change for which its user's lists are read from the queue's own database


class Replica(NamedTuple):
    """What a page says of the replica that it was read from. behind: the age of the newest heartbeat there, as a text;
    "" if there is none."""

    log: Log
    behind: str


def list_log(request: HttpRequest) -> Log:
    """Return the log that a list, a chart or a search is read from."""
    log = reading_log()
    if log == current_log() or request.method not in ("GET", "HEAD"):
        return current_log()
    changed = request.session.get(CHANGED)
    recently = changed is not None and abs(time.time() - changed) < OWN_CHANGE_SEEN
    return current_log() if recently else log


def replica(log: Log) -> Replica | None:
    """Return what the page says that was read from a log; None unless it is the replica."""
    if not settings.is_replica(log.alias):
        return None
    age = newest_heartbeat(log)
    return Replica(log, "" if age is None else duration(age))


def remember_change(request: HttpRequest) -> None:
    """Let the user see on lists what was changed: these are read from the queue's own database for a while."""
    if settings.is_replica(reading_log().alias):
        request.session[CHANGED] = time.time()
