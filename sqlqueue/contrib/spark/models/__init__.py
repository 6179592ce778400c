"""The tables of the archive and of the analytics."""

from sqlqueue.contrib.spark.models.archive_segment import ArchiveSegment
from sqlqueue.contrib.spark.models.hourly import HourlyError, HourlyStatistic

__all__ = ["ArchiveSegment", "HourlyError", "HourlyStatistic"]
