"""The pipeline: all flights from the file through the queue to archive, statistics and plots (`make pipeline`)."""

from __future__ import annotations

import shutil
import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import connection
from django.db.models import Sum
from rich.console import Console

from example_project.flights.bars import ConsumersFailed, consume_with_bars
from example_project.flights.check import check_flights
from example_project.flights.children import leaving_on_sigterm
from example_project.flights.comparison import Comparison, compare
from example_project.flights.data import TOTAL_FLIGHTS, FlightDataMissing, read_flights
from example_project.flights.demo_database import (
    DemoDatabaseInUse,
    demo_in_use,
    is_demo_database,
    remove_demo_database,
)
from example_project.flights.expected import expected_results
from example_project.flights.models import PublishedBatch
from example_project.flights.report import print_report, verdict
from example_project.flights.results import DelayTotals
from example_project.flights.rules import GROUPS, TOPIC
from sqlqueue.contrib.spark.models import HourlyStatistic
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log.topic_options import override
from sqlqueue.models import Message

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WRITERS = 2


class Command(BaseCommand):
    help = (
        "Backfills real flights with Spark, consumes, archives and analyses them, compares all totals with a direct "
        "computation over the file, and plots the results."
    )
    requires_migrations_checks = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--flights", type=int, default=TOTAL_FLIGHTS, help="how many (default: all, %(default)s)")
        parser.add_argument("--folder", help="where archive and plots go (default: `lake` in VAR_DIR)")
        parser.add_argument("--images", help="where the plots go (default: `plots` in that folder)")
        parser.add_argument("--master", default="local[2]", help="where Spark runs (%(default)s)")

    def handle(self, *args: Any, **options: Any) -> None:
        if not 0 < options["flights"] <= TOTAL_FLIGHTS:
            raise CommandError(f"--flights must lie between 1 and {TOTAL_FLIGHTS:,}.")
        self.console = Console(file=options.get("stdout"))
        self.folder = Path(options["folder"] or settings.VAR_DIR / "lake")
        self.times: list[tuple[str, int, float]] = []
        try:
            with leaving_on_sigterm(), demo_in_use():
                self.prepare()
                self.run_pipeline(options)
        except (FlightDataMissing, DemoDatabaseInUse, ConsumersFailed, ConfigurationError) as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            raise CommandError("Interrupted. Start again with: make pipeline", returncode=130) from None

    def prepare(self) -> None:
        """Empty the demo's database and the folder. Raises CommandError if another database has messages."""
        from sqlqueue.contrib.spark.session import require_spark

        require_spark()
        if is_demo_database() and remove_demo_database():
            self.say(f"Removed the last run's database, {settings.DEMO_DATABASE}.")
        call_command("migrate", verbosity=0)
        if Message.objects.exists():
            raise CommandError("This database has messages already: give an empty one in DATABASE_URL.")
        shutil.rmtree(self.folder / "archive", ignore_errors=True)

    def run_pipeline(self, options: dict[str, Any]) -> None:
        """Run the steps one after another, in one Spark session."""
        from sqlqueue.contrib.spark.session import session

        conf = {
            "spark.master": options["master"],
            "spark.ui.showConsoleProgress": "true",
            "spark.sql.shuffle.partitions": "8",
        }
        with self.timed("start Spark", 0):
            spark = session("flights", **conf)
        spark.sparkContext.setLogLevel("ERROR")
        try:
            self.backfill(spark, options["flights"])
            self.consume()
            check = check_flights()
            print_report(self.console, check)
            holds = self.archive_and_analyse(spark, options["flights"]) and check.holds
            self.plot(spark, Path(options["images"] or self.folder / "plots"))
        finally:
            spark.stop()
        for step, rows, seconds in self.times:
            self.say(
                f"{step:<12} {seconds:7.1f} s" + (f"  {rows:>9,} rows  {rows / seconds:>9,.0f} rows/s" if rows else "")
            )
        if not holds:
            sys.exit(1)

    def backfill(self, spark: SparkSession, flights: int) -> None:
        """Publish the file's rows from Spark."""
        from example_project.flights.lake import READING, flight_messages, unpack
        from sqlqueue.contrib.spark.backfill import in_order, publish
        from sqlqueue.contrib.spark.files import read_files

        self.say(f"Publishing {flights:,} real flights of 2013 from Spark to {connection.vendor}.")
        with self.timed("backfill", flights):
            rows = read_files(spark, [str(unpack(self.folder))], "csv", READING)
            rows = rows if flights == TOTAL_FLIGHTS else rows.orderBy("_block", "_row").limit(flights)
            publish(in_order(flight_messages(rows), WRITERS), TOPIC)
        PublishedBatch.objects.create(start=0, stop=flights)
        override("default", TOPIC, {"history": "all"})  # every receipt: the latencies are computed from them

    def consume(self) -> None:
        """Consume the flights in three groups."""
        log = Path(settings.VAR_DIR, "pipeline-consumers.log")
        self.say(f"Consuming them: 3 groups, 2 processes with 4 threads each. Their log: {log}")
        with self.timed("consume", len(GROUPS) * Message.objects.filter(topic=TOPIC).count()):
            consume_with_bars(self.console, log)

    def archive_and_analyse(self, spark: SparkSession, flights: int) -> bool:
        """Archive, analyse and compare; return whether every comparison holds."""
        folder = str(self.folder / "archive")
        with self.timed("archive", Message.objects.filter(topic=TOPIC).count() + receipts()):
            call_command("queuearchive", folder, topic=[TOPIC], receipt_lag=0.0)
        with self.timed("verify", Message.objects.filter(topic=TOPIC).count() + receipts()):
            call_command("queuearchive", folder, topic=[TOPIC], verify=True)
        with self.timed("analytics", Message.objects.filter(topic=TOPIC).count() + receipts()):
            call_command("queueanalytics", topic=[TOPIC], archive=folder)
        comparisons = list(self.comparisons(spark, flights))
        for comparison in comparisons:
            self.console.print(verdict(comparison), soft_wrap=True)
        return all(comparison.holds for comparison in comparisons)

    def comparisons(self, spark: SparkSession, flights: int) -> Iterator[Comparison]:
        """Compare the archive and the statistics with the file."""
        from example_project.flights.lake import delays

        expected = expected_results(read_flights(flights))
        rows = delays(self.flights(spark), "origin", "carrier").collect()
        found = {
            (row["origin"], row["carrier"]): DelayTotals(**{name: row[name] for name in DelayTotals.__slots__})
            for row in rows
        }
        yield compare("archive", "airport and carrier pairs equal the direct computation", expected.delays, found)
        ids = dict(self.flights(spark).groupBy("id").count().where("count <> 1").collect())
        count = self.flights(spark).count()
        yield compare("archive", "flights are there once", {"all": flights}, {"all": count, **ids})
        totals = HourlyStatistic.objects.filter(topic=TOPIC).values("consumer_group")
        sums = {
            row["consumer_group"]: row
            for row in totals.annotate(*(Sum(name) for name in ("published", "acked", "dead")))
        }
        settled = {group: sums[group]["acked__sum"] + sums[group]["dead__sum"] for group in GROUPS if group in sums}
        settled[""] = sums[""]["published__sum"]
        yield compare("statistics", "totals equal the file's", dict.fromkeys((*GROUPS, ""), flights), settled)

    def plot(self, spark: SparkSession, folder: Path) -> None:
        """Plot delays, latencies and outcomes."""
        from pyspark.sql import functions as F

        from example_project.flights.lake import delays
        from example_project.flights.plots import plot_delays, plot_latency, plot_outcomes
        from sqlqueue.contrib.spark.archive import read_archive

        archive = str(self.folder / "archive")
        published = read_archive(spark, archive).select("offset", "created_at")
        acked = read_archive(spark, archive, "receipts").where("outcome = 'acked'").join(published, "offset")
        seconds = F.round(F.unix_micros("finished_at") / 1e6 - F.unix_micros("created_at") / 1e6, 0)
        latency = acked.groupBy("group", seconds.alias("seconds")).agg(F.count(F.lit(1)).alias("messages"))
        statistics = HourlyStatistic.objects.filter(topic=TOPIC).exclude(consumer_group="").values()
        for file in (
            plot_delays(dicts(delays(self.flights(spark), "carrier", "hour")), folder),
            plot_latency(dicts(latency), folder),
            plot_outcomes(statistics, folder),
        ):
            self.say(f"Plotted {file}")

    def flights(self, spark: SparkSession) -> DataFrame:
        """Return the archived flights."""
        from example_project.flights.lake import flights
        from sqlqueue.contrib.spark.archive import read_archive

        return flights(read_archive(spark, str(self.folder / "archive")).where(f"topic = '{TOPIC}'"))

    @contextmanager
    def timed(self, step: str, rows: int) -> Iterator[None]:
        """Measure how long the body takes, for the summary."""
        started = time.monotonic()
        yield
        self.times.append((step, rows, time.monotonic() - started))

    def say(self, line: str) -> None:
        """Print a plain line."""
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


def receipts() -> int:
    """Return how many receipts of the flights there are."""
    from sqlqueue.models import Receipt

    return Receipt.objects.filter(topic=TOPIC).count()


def dicts(rows: DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a small DataFrame: sums, not flights."""
    return [row.asDict() for row in rows.collect()]
