"""Purging a topic (`queuepurge`)."""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from sqlqueue.core import effects
from sqlqueue.core.effects import texts
from sqlqueue.management.arguments import HELP, known_topic, offset_above
from sqlqueue.management.base import QueueCommand
from sqlqueue.operations.topics import delete_purged, preview, purge
from sqlqueue.stats.texts import about

BATCHES = 1  # of 1,000 messages, between two steps of the progress bar


class Command(QueueCommand):
    """Counts the messages, asks the operator, purges, and deletes what is released."""

    help = "Delete a topic's messages before their retention is over."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the command's arguments."""
        parser.add_argument("topic")
        parser.add_argument("--before", metavar="WHERE", help=f"only messages before {HELP} (default: all)")
        parser.add_argument(
            "--unsettled",
            action="store_true",
            help="also messages that groups have not settled: they are never delivered",
        )
        self.add_caution(parser)
        self.add_json(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Count, ask and purge."""
        topic, unsettled = known_topic(self.log, options["topic"]), options["unsettled"]
        through = None if options["before"] is None else offset_above(self.log, options["before"])
        found, kept = preview(self.log, topic.name, through), effects.lost_with(self.log, topic.name)
        self.say(f"There are {about(found.messages, found.estimated)} messages up to offset {found.through}.")
        rows = [(group, about(count, found.estimated and count > 0)) for group, count in found.unsettled.items()]
        if rows:
            self.table(("group", "not-settled"), rows)
        for text in texts(kept):
            self.say(f"{text}: the purge leaves them.")
        over = " Groups skip what they have not settled." if unsettled else ""
        question = f"Purge topic {topic.name!r} up to offset {found.through}?{over}"
        counted = {**asdict(found), "effects": kept}
        if self.proceed(options, question if found.messages or unsettled else "", preview=counted):
            skipped = purge(self.log, topic.name, through=found.through, unsettled=unsettled).skipped
            deleted = self._delete(topic.name, found.messages)
            text = f"Deleted {deleted} messages; the others up to there are deleted once they are settled."
            self.done(text, **counted, deleted=deleted, skipped=skipped)

    def _delete(self, topic: str, total: int) -> int:
        deleted, more = 0, True
        with self.progress("purge", total) as progress:
            while more:
                some, more = delete_purged(self.log, topic, BATCHES)
                deleted += some
                progress.reach(deleted)
        return deleted
