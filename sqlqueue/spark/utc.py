"""Days and hours in UTC, whatever the session's time zone is."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

HOUR = 3_600_000_000  # microseconds
DAY = 24 * HOUR


def utc_hour(column: str) -> Column:
    """Return the hours that times lie in, as times."""
    return F.timestamp_micros(_floor(column, HOUR))


def utc_day(column: str) -> Column:
    """Return the days that times lie in, as YYYY-MM-DD."""
    return F.date_from_unix_date((_floor(column, DAY) / F.lit(DAY)).cast("int")).cast("string")


def _floor(column: str, unit: int) -> Column:
    at = F.unix_micros(F.col(column))
    return at - F.pmod(at, F.lit(unit))
