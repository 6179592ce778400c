"""Analyse the log."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.conf import settings as django_settings
from django.core.management.base import CommandError
from django.db import transaction

from sqlqueue.conf import settings
from sqlqueue.core.hours import merged
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX
from sqlqueue.database import faults
from sqlqueue.database.horizon import Horizon
from sqlqueue.log.seek import receipt_before
from sqlqueue.management.spark import SparkCommand
from sqlqueue.models import ArchiveSegment, HourlyError, HourlyStatistic, Topic
from sqlqueue.models.archive_segment import MESSAGES, RECEIPTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sqlqueue.models.hourly import HourlyQuerySet


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
        parser.add_argument(
            "--receipt-lag",
            type=float,
            default=3600.0,
            help="seconds by which a receipt may have become visible late: longer than any settle takes (%(default)s)",
        )
        parser.add_argument("--everything", action="store_true", help="compute all days, not only those with news")
        parser.add_argument(
            "--wait", type=float, default=60.0, help="seconds to wait for transactions that publish (%(default)s)"
        )
        super().add_arguments(parser)

    def run(self, options: dict[str, Any]) -> None:
        """Analyse."""
        from sqlqueue.spark.folder import existing

        if not django_settings.USE_TZ:
            raise CommandError(
                "the hours are computed in UTC, and the database would take them for local ones: set USE_TZ = True"
            )
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
        from sqlqueue.spark.analysing import analyse
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
        done = (0, 0) if options["everything"] else reached(topic, options["receipt_lag"])
        found = analyse(Log(spark, topic, horizon, archive, frontiers), *done)
        if found is None:
            self.say(f"{topic}: nothing new")
            return
        if options["dry_run"]:
            self.say(f"{topic}: {', '.join(found.days)} would be computed")
            return
        days = None if options["everything"] else found.days
        said = [
            self.store(spark, rows, objects.using(settings.DATABASE), topic, days, options["output"], name)
            for rows, objects, name in (
                (found.statistics, HourlyStatistic.objects, "statistics"),
                (found.errors, HourlyError.objects, "errors"),
            )
        ]
        written, less = zip(*said)
        self.say(
            f"{topic}: {written[0]:,} hours and {written[1]:,} errors of {', '.join(found.days)} stored"
            + (f"; of {sum(less):,} the log no longer has everything: what was known is kept" if any(less) else "")
        )

    def store(
        self,
        spark: SparkSession,
        found: DataFrame,
        objects: HourlyQuerySet,
        topic: str,
        days: list[str] | None,
        output: str | None,
        name: str,
    ) -> tuple[int, int]:
        """Put hours into their table, in one transaction, and into the files first: once the table knows these rows, a
        run that was killed would not come back to them. Return how many, and of how many something was kept."""
        from sqlqueue.spark.analysing import as_rows, write

        rows = list(as_rows(found))
        if output:
            whole, _ = merged(objects.columns, objects.known(topic, days), rows)
            write(spark, whole, found.schema, objects.columns, f"{output}/{name}")
        faults.close_lost_connections()  # Spark may have taken longer than an idle one lasts
        with transaction.atomic(using=objects.db):
            return objects.store(rows)


def reached(topic: str, lag: float) -> tuple[int, int]:
    """Return the offset and the receipt's id behind which there may be something that no run has seen."""
    alias = settings.DATABASE
    offset, hour = HourlyStatistic.objects.using(alias).reached(topic)
    return offset, receipt_before(alias, hour - timedelta(seconds=lag)) if hour else 0
