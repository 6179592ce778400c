"""Analytics of the log by hour (`queueanalytics`)."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.conf import settings as django_settings
from django.core.management.base import CommandError
from django.db import transaction
from django.db.models import Max

from sqlqueue.conf import settings
from sqlqueue.contrib.spark.management.base import SparkCommand
from sqlqueue.contrib.spark.manifest import MESSAGES, RECEIPTS
from sqlqueue.contrib.spark.models import ArchiveSegment, HourlyError, HourlyStatistic
from sqlqueue.core.bounds import CENTURY
from sqlqueue.database import retries
from sqlqueue.database.horizon import Horizon
from sqlqueue.database.log import Log, reading_log
from sqlqueue.exceptions import HorizonUnknown
from sqlqueue.log.status import key_before
from sqlqueue.management import arguments
from sqlqueue.models import Receipt
from sqlqueue.stats.processes import replicated_horizon

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sqlqueue.contrib.spark.models import HourlyQuerySet


class Command(SparkCommand):
    """Computes the analytics of each topic, and stores them in tables."""

    help = (
        "Compute, by hour, topic and group, counts, latencies, retries, errors and key skew of what was published and "
        "settled. Only days with new messages or receipts are computed; running it twice changes nothing."
    )

    database_help = "only what is on this database (default: each that has a log)"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the command's options."""
        parser.add_argument("--topic", action="append", default=[], help="only this topic (repeatable; default: all)")
        parser.add_argument(
            "--archive", help="the archive's folder, from which messages that collection has deleted are read"
        )
        parser.add_argument(
            "--receipt-lag",
            type=arguments.decimal(0, CENTURY),
            default=3600.0,
            help="seconds by which a receipt may become visible late: longer than any settle takes (%(default)s)",
        )
        parser.add_argument(
            "--everything", action="store_true", help="compute all days, not only those with new messages or receipts"
        )
        parser.add_argument(
            "--wait",
            type=arguments.decimal(0, CENTURY),
            default=60.0,
            help="seconds to wait for open transactions that publish (%(default)s)",
        )
        super().add_arguments(parser)

    def run(self, options: dict[str, Any]) -> None:
        """Analyse the topics one after another. Raises CommandError, ConfigurationError and HorizonUnknown."""
        from sqlqueue.contrib.spark.archive import existing

        if not django_settings.USE_TZ:
            raise CommandError(
                "the hours are computed in UTC, and the database would store them as local times: set USE_TZ = True"
            )
        if options["archive"]:
            existing(options["archive"])  # before Spark starts
        with self.spark(options) as spark:
            for database in self.on_databases(options):
                horizon = self.horizon(options)
                for topic in self.topics_here(options["topic"]):
                    self.analyse(spark, database, topic, horizon, options)

    def horizon(self, options: dict[str, Any]) -> int:
        """Return the horizon of the database that is worked on, or of its replica. Raises HorizonUnknown."""
        log = reading_log(self.log)
        if settings.is_replica(log.alias):
            horizon = replicated_horizon(log)
            self.say(f"read from the replica {log.alias!r}, up to offset {horizon}")
            return horizon
        return Horizon(log).wait(options["wait"])

    def analyse(self, spark: SparkSession, database: str, topic: str, horizon: int, options: dict[str, Any]) -> None:
        """Compute and store one topic's hours on a database; with --dry-run only name the days."""
        from sqlqueue.contrib.spark.analytics import TopicRows, analyse
        from sqlqueue.contrib.spark.archive import of_database
        from sqlqueue.contrib.spark.manifest import ForeignSegment

        root = options["archive"]
        archive = of_database(root, database) if root else None
        segments = ArchiveSegment.objects.using(self.log.alias)
        if archive:
            try:
                archive.refuse_elsewhere(segments.ends(topic=topic), topic)
            except ForeignSegment as error:
                raise CommandError(str(error)) from error
        frontiers = {kind: segments.frontier(topic, kind) for kind in (MESSAGES, RECEIPTS)}
        if frontiers[MESSAGES] > horizon:  # only a replica's: dead letters up to the archive's end may not be there yet
            raise HorizonUnknown(f"the replica is behind the archive of {topic}: try again when it has caught up")
        done = (0, 0) if options["everything"] else reached(self.log, topic, options["receipt_lag"])
        hours = analyse(TopicRows(spark, reading_log(self.log), topic, horizon, archive, frontiers), *done)
        if hours is None:
            self.say(f"{topic}: nothing new")
            return
        if options["dry_run"]:
            self.say(f"{topic}: {', '.join(hours.days)} would be computed")
            return
        counts = [
            self.store(rows, objects.using(self.log.alias))
            for rows, objects in ((hours.statistics, HourlyStatistic.objects), (hours.errors, HourlyError.objects))
        ]
        written, incomplete = zip(*counts)
        self.say(
            f"{topic}: {written[0]:,} hours and {written[1]:,} errors of {', '.join(hours.days)} stored"
            + (
                f"; of {sum(incomplete):,} the log no longer has everything: what was known is kept"
                if any(incomplete)
                else ""
            )
        )

    def store(self, hours: DataFrame, objects: HourlyQuerySet) -> tuple[int, int]:
        """Store hours in their table, in one transaction; return how many, and for how many of them known values were
        kept, since the log no longer has everything."""
        from sqlqueue.contrib.spark.analytics import as_rows

        rows = list(as_rows(hours))
        retries.close_lost_connections()  # Spark may have taken longer than an idle connection lasts
        with transaction.atomic(using=objects.db):
            return objects.store(rows)


def reached(log: Log, topic: str, lag: float) -> tuple[int, int]:
    """Return the offset and the receipt's id above which there may be rows that no run has read; lag: in seconds."""
    rows = HourlyStatistic.objects.using(log.alias).filter(topic=topic)
    found = rows.aggregate(offset=Max("last_offset"), hour=Max("hour"))
    if found["hour"] is None:
        return 0, 0
    return found["offset"], key_before(log, Receipt, "finished_at", found["hour"] - timedelta(seconds=lag))
