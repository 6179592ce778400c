"""Where in the log was a time?"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from django.db.models import Max, Min

from sqlqueue.database.dialects import dialect, execute
from sqlqueue.models import Message

BRANCHES = 16  # places looked at with one statement
MARGIN = timedelta(seconds=5)  # messages published side by side need not stand in the order of their times
# Nothing was published before, and nothing will be later; beyond them times overflow.
EARLIEST, LATEST = datetime(1970, 1, 2, tzinfo=timezone.utc), datetime(9000, 1, 1, tzinfo=timezone.utc)
# The first message at or above a place, and whether it is earlier than a time. Index: the primary key.
NEXT = """
    SELECT %s, "offset", CASE WHEN created_at < %s THEN 1 ELSE 0 END FROM sqlqueue_message{by_offset}
    WHERE "offset" >= %s ORDER BY "offset" LIMIT 1
"""


def within_calendar(moment: datetime) -> datetime:
    """Return an aware time in UTC, far enough from where times overflow."""
    return max(EARLIEST, min(moment, LATEST)).astimezone(timezone.utc)


def offset_before(alias: str, moment: datetime) -> int:
    """Return an offset such that whatever was published at `moment` (aware) or later stands above it.

    The log is nearly in the order of its times; five seconds are added for what is not. Some six statements for ten
    million messages. Raises ValueError for a time without a time zone.
    """
    if moment.tzinfo is None:
        raise ValueError(f"the time must be aware (with a time zone), not {moment!r}")
    at = within_calendar(moment) - MARGIN
    ends = Message.objects.using(alias).aggregate(low=Min("offset"), high=Max("offset"))
    if ends["low"] is None:
        return 0
    low, high = int(ends["low"]) - 1, int(ends["high"]) + 1  # what is at or below low is earlier, at or above high not
    while high - low > 1:
        places = list(range(low + 1, high, max(1, (high - low) // BRANCHES)))
        found = _first_at(alias, at, places)
        for place in places:
            offset, earlier = found.get(place, (high, False))
            if not earlier or offset >= high:
                high = place
                break
            low = max(low, offset)
    return low


def _first_at(alias: str, at: datetime, places: list[int]) -> dict[int, tuple[int, bool]]:
    words = dialect(alias)
    branch = words.branch.format(NEXT.strip())
    values: list[Any] = [value for place in places for value in (place, words.time(at), place)]
    rows = execute(alias, " UNION ALL ".join([branch] * len(places)), values).fetchall()
    return {int(place): (int(offset), bool(earlier)) for place, offset, earlier in rows}
