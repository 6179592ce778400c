"""The archive of messages and receipts (`queuearchive`)."""

from __future__ import annotations

from argparse import ArgumentParser
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError

from sqlqueue.conf import settings
from sqlqueue.contrib.spark.archivist import Archivist, archivist, newest_receipts, waiting
from sqlqueue.contrib.spark.management.base import SparkCommand
from sqlqueue.contrib.spark.manifest import MESSAGES, RECEIPTS
from sqlqueue.core.bounds import CENTURY
from sqlqueue.exceptions import ConfigurationError, LeaseLost
from sqlqueue.management import arguments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sqlqueue.contrib.spark.archive import Archive


class Command(SparkCommand):
    """Archives topics, verifies the archive, or says what would be archived."""

    help = (
        "Write messages and receipts to Parquet, each exactly once; collection deletes a message only after that. "
        "It may be killed at any point and run again."
    )

    database_help = "only what is on this database (default: each that has a log)"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the command's options."""
        parser.add_argument(
            "folder",
            help="the archive's folder, made if it is missing, which the driver and all executors see; or its place in "
            "an object store, such as s3://bucket/lake",
        )
        parser.add_argument("--topic", action="append", default=[], help="only this topic (repeatable; default: all)")
        parser.add_argument(
            "--segment-rows",
            type=arguments.whole(1, arguments.HIGHEST_OFFSET),
            default=1_000_000,
            help="rows of a segment (%(default)s)",
        )
        parser.add_argument(
            "--no-receipts", dest="receipts", action="store_false", help="archive messages only, no receipts"
        )
        parser.add_argument(
            "--receipt-lag",
            type=arguments.decimal(0, CENTURY),
            default=300.0,
            help="seconds after which a receipt counts as final: longer than any settle takes (%(default)s)",
        )
        parser.add_argument(
            "--wait",
            type=arguments.decimal(0, CENTURY),
            help="seconds to wait for another archivist or an open transaction that publishes (default: twice "
            "SQLQUEUE['LEASE_DURATION'])",
        )
        parser.add_argument(
            "--verify", action="store_true", help="read the archive again and compare it with the manifest"
        )
        parser.add_argument(
            "--new-folder",
            action="store_true",
            help="begin an archive here for topics that have none yet, though others are archived elsewhere",
        )
        super().add_arguments(parser)

    def run(self, options: dict[str, Any]) -> None:
        """Archive, verify, or print what would be archived. Raises CommandError, LeaseLost and HorizonUnknown."""
        if options["wait"] is None:
            options["wait"] = 2 * settings.LEASE_DURATION
        wrong: list[str] = []
        busy: list[str] = []
        with self.spark(options) if not options["dry_run"] else nullcontext() as spark:
            for database in self.on_databases(options):
                topics = self.topics_here(options["topic"])
                lag = options["receipt_lag"]
                receipts = newest_receipts(self.log, topics, lag) if options["receipts"] else {}
                for topic in topics:
                    if spark is None:
                        self.preview(topic, options, receipts.get(topic, 0))
                    else:
                        self.attempt(spark, database, topic, options, receipts.get(topic, 0), wrong, busy)
        if wrong:
            for line in busy:
                self.say(line)
            raise CommandError("\n".join(wrong))
        if busy:
            raise LeaseLost("\n".join(busy))

    def attempt(
        self,
        spark: SparkSession,
        database: str,
        topic: str,
        options: dict[str, Any],
        receipts_to: int,
        wrong: list[str],
        busy: list[str],
    ) -> None:
        """Archive or verify one topic of a database; add why it failed to `wrong`, and to `busy` that another process
        archives it now. receipts_to: the highest id of a final receipt."""
        from sqlqueue.contrib.spark.archive import existing, of_database
        from sqlqueue.contrib.spark.archiving import FAILURES, SegmentDiffers
        from sqlqueue.contrib.spark.manifest import DamagedArchive, ForeignSegment

        failures = (SegmentDiffers, ForeignSegment, DamagedArchive, ConfigurationError, OSError, *FAILURES)
        try:
            if options["verify"]:
                existing(options["folder"])
            archive = of_database(options["folder"], database)
            with archivist(self.log, topic, timeout=options["wait"], say=self.say) as owner:
                for kind in [MESSAGES, RECEIPTS] if options["receipts"] else [MESSAGES]:
                    if options["verify"]:
                        wrong += self.verify(spark, owner, archive, kind)
                    else:
                        self.archive(spark, owner, archive, kind, receipts_to, options)
        except LeaseLost as error:
            busy.append(f"{topic}: {error}")
        except failures as error:
            wrong.append(f"{topic}: {error}")

    def archive(
        self,
        spark: SparkSession,
        owner: Archivist,
        archive: Archive,
        kind: str,
        receipts_to: int,
        options: dict[str, Any],
    ) -> None:
        """Archive a topic's messages or receipts."""
        from sqlqueue.contrib.spark.archiving import archive_topic

        rows, begin = options["segment_rows"], options["new_folder"]
        for segment in archive_topic(
            spark, owner, archive, kind, segment_rows=rows, receipts_to=receipts_to, begin=begin, say=self.say
        ):
            self.say(
                f"{owner.topic}: {segment.row_count:,} {kind} {segment.first_offset}-{segment.last_offset} archived "
                f"({segment.files} files, {segment.bytes:,} bytes, checksum {segment.checksum})"
            )

    def verify(self, spark: SparkSession, owner: Archivist, archive: Archive, kind: str) -> list[str]:
        """Compare the files with the segments; return a line for each difference."""
        from sqlqueue.contrib.spark.archiving import differences

        segments, wrong = owner.segments(kind), differences(spark, owner, archive, kind)
        self.say(f"{owner.topic}: {len(segments)} segments of {kind}, {len(wrong)} wrong")
        return wrong

    def preview(self, topic: str, options: dict[str, Any], receipts_to: int) -> None:
        """Print how many messages and receipts of a topic would be archived."""
        for kind in [MESSAGES, RECEIPTS] if options["receipts"] else [MESSAGES]:
            rows = waiting(self.log, topic, kind, receipts_to)
            self.say(f"{topic}: {rows:,} {kind} would be archived")
