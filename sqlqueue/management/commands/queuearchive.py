"""Archive the log."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError

from sqlqueue.conf import settings
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX
from sqlqueue.exceptions import ConfigurationError, LeaseLost
from sqlqueue.leases.archivist import Archivist, archivist
from sqlqueue.log.archive import newest_receipts
from sqlqueue.management.spark import SparkCommand
from sqlqueue.models import Topic
from sqlqueue.models.archive_segment import MESSAGES, RECEIPTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Command(SparkCommand):
    """Parses, calls, prints."""

    help = (
        "Write messages and receipts to Parquet, each exactly once; collection deletes a message only after that. "
        "It may be killed at any point and run again."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("folder", help="where the archive is, or will be; the driver and all executors must see it")
        parser.add_argument("--topic", action="append", default=[], help="only this topic (repeatable; default: all)")
        parser.add_argument("--segment-rows", type=int, default=1_000_000, help="rows of a segment (%(default)s)")
        parser.add_argument(
            "--no-receipts", dest="receipts", action="store_false", help="archive messages only, no receipts"
        )
        parser.add_argument(
            "--receipt-lag",
            type=float,
            default=300.0,
            help="seconds after which a receipt counts as final: longer than any settle takes (%(default)s)",
        )
        parser.add_argument(
            "--wait",
            type=float,
            default=2 * settings.LEASE_DURATION,
            help="seconds to wait for another archivist, or a transaction that publishes (%(default)s)",
        )
        parser.add_argument(
            "--verify", action="store_true", help="read the archive again and compare it with the manifest"
        )
        parser.add_argument(
            "--new-folder",
            action="store_true",
            help="topics that are in no archive yet begin one here, though others are archived elsewhere",
        )
        super().add_arguments(parser)

    def run(self, options: dict[str, Any]) -> None:
        """Archive, verify, or say what would be archived."""
        if options["segment_rows"] < 1:
            raise CommandError("--segment-rows must be at least 1")
        topics = options["topic"] or [
            name
            for name in Topic.objects.using(settings.DATABASE).order_by("name").values_list("name", flat=True)
            if not name.endswith(DEAD_LETTER_SUFFIX)
        ]
        receipts = newest_receipts(settings.DATABASE, topics, options["receipt_lag"]) if options["receipts"] else {}
        if options["dry_run"]:
            for topic in topics:
                self.tell(topic, options, receipts.get(topic, 0))
            return
        if options["verify"]:
            with self.spark(options) as spark:
                wrong = [said for topic in topics for said in self.verify(spark, topic, options)]
        else:
            wrong = self.archive_all(topics, options, receipts)
        if wrong:
            raise CommandError("\n".join(wrong))

    def archive_all(self, topics: list[str], options: dict[str, Any], receipts: dict[str, int]) -> list[str]:
        """Archive topics one after another, whatever becomes of one of them; return why some could not be.

        Raises LeaseLost if all that is left over is what other processes archive now.
        """
        from sqlqueue.spark.manifest import DamagedArchive

        wrong: list[str] = []
        busy: list[str] = []
        with self.spark(options) as spark:
            from sqlqueue.spark.archiving import FAILURES, SegmentDiffers
            from sqlqueue.spark.folder import ForeignSegment

            refused = (SegmentDiffers, ForeignSegment, DamagedArchive, ConfigurationError, OSError, *FAILURES)
            for topic in topics:
                try:
                    self.archive(spark, topic, options, receipts.get(topic, 0))
                except LeaseLost as error:
                    busy.append(f"{topic}: {error}")
                except refused as error:
                    wrong.append(f"{topic}: {error}")
        for line in busy if wrong else ():
            self.say(line)
        if busy and not wrong:
            raise LeaseLost("\n".join(busy))
        return wrong

    def archive(self, spark: SparkSession, topic: str, options: dict[str, Any], receipts_to: int) -> None:
        """Archive one topic."""
        from sqlqueue.spark.archiving import archive_topic
        from sqlqueue.spark.folder import Folder

        folder = Folder(options["folder"])
        with archivist(settings.DATABASE, topic, patience=options["wait"], say=self.say) as keeper:
            for kind in kinds(options):
                for segment in archive_topic(
                    spark,
                    keeper,
                    folder,
                    kind,
                    segment_rows=options["segment_rows"],
                    receipts_to=receipts_to,
                    begin=options["new_folder"],
                    say=self.say,
                ):
                    self.say(
                        f"{topic}: {segment.figures.rows:,} {kind} {segment.first}-{segment.last} archived "
                        f"({segment.files} files, {segment.bytes:,} bytes, checksum {segment.figures.checksum})"
                    )

    def verify(self, spark: SparkSession, topic: str, options: dict[str, Any]) -> list[str]:
        """Verify what is archived of one topic; return what is wrong."""
        from sqlqueue.spark.folder import existing
        from sqlqueue.spark.verifying import differences, strangers

        folder = existing(options["folder"])
        wrong: list[str] = []
        with archivist(settings.DATABASE, topic, patience=options["wait"], say=self.say) as keeper:
            for kind in kinds(options):
                segments = keeper.segments(kind)
                found = differences(spark, segments, folder, kind) + strangers(topic, segments, folder, kind)
                self.say(f"{topic}: {len(segments)} segments of {kind}, {len(found)} wrong")
                wrong += found
        return wrong

    def tell(self, topic: str, options: dict[str, Any], receipts_to: int) -> None:
        """Say what would be archived of a topic."""
        for kind in kinds(options):
            waiting = Archivist.waiting(settings.DATABASE, topic, kind, receipts_to)
            self.say(f"{topic}: {waiting:,} {kind} would be archived")


def kinds(options: dict[str, Any]) -> list[str]:
    """Return what is archived: messages, and receipts unless they are not wanted."""
    return [MESSAGES, RECEIPTS] if options["receipts"] else [MESSAGES]
