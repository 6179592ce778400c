"""Archive the log."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError

from sqlqueue.conf import settings
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX
from sqlqueue.leases.archivist import Archivist, archivist
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
        if options["dry_run"]:
            for topic in topics:
                self.tell(topic, options)
            return
        with self.spark(options) as spark:
            wrong = [said for topic in topics for said in self.archive(spark, topic, options)]
        if wrong:
            raise CommandError("\n".join(wrong))

    def archive(self, spark: SparkSession, topic: str, options: dict[str, Any]) -> list[str]:
        """Archive one topic, or verify what is archived of it; return what is wrong."""
        from sqlqueue.spark.archiving import SegmentDiffers, archive_topic, differences
        from sqlqueue.spark.folder import Folder, ForeignSegment

        folder = Folder(options["folder"])
        wrong: list[str] = []
        with archivist(settings.DATABASE, topic, patience=options["wait"], say=self.say) as keeper:
            for kind in kinds(options):
                if options["verify"]:
                    found = differences(spark, keeper, folder, kind)
                    self.say(f"{topic}: {len(keeper.segments(kind))} segments of {kind}, {len(found)} wrong")
                    wrong += found
                    continue
                try:
                    for segment in archive_topic(
                        spark,
                        keeper,
                        folder,
                        kind,
                        segment_rows=options["segment_rows"],
                        receipt_lag=options["receipt_lag"],
                        say=self.say,
                    ):
                        self.say(
                            f"{topic}: {segment.figures.rows:,} {kind} {segment.first}-{segment.last} archived "
                            f"({segment.files} files, {segment.bytes:,} bytes, checksum {segment.figures.checksum})"
                        )
                except (SegmentDiffers, ForeignSegment) as error:
                    raise CommandError(str(error)) from error
        return wrong

    def tell(self, topic: str, options: dict[str, Any]) -> None:
        """Say what would be archived of a topic."""
        for kind in kinds(options):
            waiting = Archivist.waiting(settings.DATABASE, topic, kind, options["receipt_lag"])
            self.say(f"{topic}: {waiting:,} {kind} would be archived")


def kinds(options: dict[str, Any]) -> list[str]:
    """Return what is archived: messages, and receipts unless they are not wanted."""
    return [MESSAGES, RECEIPTS] if options["receipts"] else [MESSAGES]
