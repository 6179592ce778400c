"""Where in the log was a time?"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from django.db import models
from django.db.models import Max, Min

from sqlqueue.database.dialects import dialect, execute
from sqlqueue.models import Message, Receipt

BRANCHES = 16  # places looked at with one statement
MARGIN = timedelta(seconds=5)  # messages published side by side need not stand in the order of their times
# Nothing was published before, and nothing will be later; beyond them times overflow.
EARLIEST, LATEST = datetime(1970, 1, 2, tzinfo=timezone.utc), datetime(9000, 1, 1, tzinfo=timezone.utc)
# The first row at or above a place, and whether it is earlier than a time. Index: the primary key.
NEXT = """
    SELECT %s, {key}, CASE WHEN {time} < %s THEN 1 ELSE 0 END FROM {table}{by_offset}
    WHERE {key} >= %s ORDER BY {key} LIMIT 1
"""


class Rows(NamedTuple):
    """A table whose primary key grows with its times, nearly."""

    model: type[models.Model]
    key: str
    time: str


MESSAGES = Rows(Message, "offset", "created_at")
RECEIPTS = Rows(Receipt, "id", "finished_at")


def within_calendar(moment: datetime) -> datetime:
    """Return an aware time in UTC, far enough from where times overflow."""
    return max(EARLIEST, min(moment, LATEST)).astimezone(timezone.utc)


def offset_before(alias: str, moment: datetime) -> int:
    """Return an offset such that whatever was published at `moment` (aware) or later stands above it.

    The log is nearly in the order of its times; five seconds are added for what is not. Some six statements for ten
    million messages. Raises ValueError for a time without a time zone.
    """
    return _before(alias, MESSAGES, moment)


def receipt_before(alias: str, moment: datetime) -> int:
    """Return a receipt's id such that whatever finished at `moment` (aware) or later stands above it, as far as the ids
    are in the order of the times: one that committed late has an id of its time all the same."""
    return _before(alias, RECEIPTS, moment)


def _before(alias: str, rows: Rows, moment: datetime) -> int:
    if moment.tzinfo is None:
        raise ValueError(f"the time must be aware (with a time zone), not {moment!r}")
    at = within_calendar(moment) - MARGIN
    ends = rows.model._default_manager.using(alias).aggregate(low=Min(rows.key), high=Max(rows.key))
    if ends["low"] is None:
        return 0
    low, high = int(ends["low"]) - 1, int(ends["high"]) + 1  # what is at or below low is earlier, at or above high not
    while high - low > 1:
        places = list(range(low + 1, high, max(1, (high - low) // BRANCHES)))
        found = _first_at(alias, rows, at, places)
        for place in places:
            key, earlier = found.get(place, (high, False))
            if not earlier or key >= high:
                high = place
                break
            low = max(low, key)
    return low


def _first_at(alias: str, rows: Rows, at: datetime, places: list[int]) -> dict[int, tuple[int, bool]]:
    words = dialect(alias)
    text = NEXT.replace("{key}", f'"{rows.key}"').replace("{time}", rows.time)
    branch = words.branch.format(text.replace("{table}", rows.model._meta.db_table).strip())
    values: list[Any] = [value for place in places for value in (place, words.time(at), place)]
    found = execute(alias, " UNION ALL ".join([branch] * len(places)), values).fetchall()
    return {int(place): (int(key), bool(earlier)) for place, key, earlier in found}
