"""Analyse the log."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from datetime import timezone
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError
from django.db import transaction

from sqlqueue.conf import settings
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX
from sqlqueue.database.horizon import Horizon
from sqlqueue.management.spark import SparkCommand
from sqlqueue.models import ArchiveSegment, HourlyError, HourlyStatistic, Topic
from sqlqueue.models.archive_segment import MESSAGES, RECEIPTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from sqlqueue.spark.analysing import Found


class Command(SparkCommand):
    """Parses, calls, prints."""

    help = (
        "Compute, by hour, topic and group, what was published and what became of it: counts, latencies, retries, "
        "errors, key skew. Only days with something new are computed; running it twice changes nothing."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("--topic", action="append", default=[], help="only this topic (repeatable; default: all)")
        parser.add_argument("--archive", help="the archive's folder: what collection has deleted is read from there")
        parser.add_argument("--output", help="write the hours to Parquet, too: a folder with `statistics` and `errors`")
        parser.add_argument("--everything", action="store_true", help="compute all days, not only those with news")
        parser.add_argument(
            "--wait", type=float, default=60.0, help="seconds to wait for transactions that publish (%(default)s)"
        )
        super().add_arguments(parser)

    def run(self, options: dict[str, Any]) -> None:
        """Analyse."""
        from sqlqueue.spark.folder import existing

        if options["archive"]:
            existing(options["archive"])  # before anything starts
        alias = settings.DATABASE
        deadline = time.monotonic() + options["wait"]
        horizon = Horizon(alias).wait(give_up=lambda: time.monotonic() > deadline)
        topics = options["topic"] or [
            name
            for name in Topic.objects.using(alias).order_by("name").values_list("name", flat=True)
            if not name.endswith(DEAD_LETTER_SUFFIX)
        ]
        with self.spark(options) as spark:
            for topic in topics:
                self.analyse(spark, topic, horizon, options)

    def analyse(self, spark: SparkSession, topic: str, horizon: int, options: dict[str, Any]) -> None:
        """Analyse one topic."""
        from sqlqueue.spark.analysing import analyse, write
        from sqlqueue.spark.folder import ForeignSegment, existing
        from sqlqueue.spark.log import Log

        archive = existing(options["archive"]) if options["archive"] else None
        segments = ArchiveSegment.objects.using(settings.DATABASE)
        if archive:
            try:
                archive.refuse_elsewhere(segments.ends(topic=topic), topic)
            except ForeignSegment as error:
                raise CommandError(str(error)) from error
        frontiers = {kind: segments.frontier(topic, kind) for kind in (MESSAGES, RECEIPTS)}
        done = (0, 0) if options["everything"] else HourlyStatistic.objects.using(settings.DATABASE).reached(topic)
        found = analyse(Log(spark, topic, horizon, archive, frontiers), *done)
        if found is None:
            self.say(f"{topic}: nothing new")
            return
        if options["dry_run"]:
            self.say(f"{topic}: {', '.join(found.days)} would be computed")
            return
        statistics, errors = found.statistics.cache(), found.errors.cache()
        if options[
            "output"
        ]:  # first: once the table knows these rows, a run that was killed would not come back to them
            write(statistics, options["output"], "statistics")
            write(errors, options["output"], "errors")
        self.store(topic, found, statistics, errors)
        statistics.unpersist()
        errors.unpersist()

    def store(self, topic: str, found: Found, statistics: DataFrame, errors: DataFrame) -> None:
        """Put the hours into the tables, in one transaction."""
        alias = settings.DATABASE
        with transaction.atomic(using=alias):
            written, kept = HourlyStatistic.objects.using(alias).store(rows_of(statistics))
            written_errors, _ = HourlyError.objects.using(alias).store(rows_of(errors))
        self.say(
            f"{topic}: {written:,} hours and {written_errors:,} errors of {', '.join(found.days)} stored"
            + (f"; {kept:,} kept, of which the log no longer has everything" if kept else "")
        )


def rows_of(hours: DataFrame) -> Iterator[dict[str, Any]]:
    """Yield hours as the tables want them; PySpark gives times without their zone, in the process's."""
    for row in hours.coalesce(1).toLocalIterator():  # one job, not one for each partition
        yield {**row.asDict(), "hour": row["hour"].astimezone(timezone.utc)}
