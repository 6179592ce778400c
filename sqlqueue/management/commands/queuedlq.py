"""Dead letters: list, replay, discard (`queuedlq`)."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from sqlqueue.core.bounds import LEAST_RATE, MOST_RATE
from sqlqueue.management import arguments
from sqlqueue.management.arguments import has_nothing_of, known_topic
from sqlqueue.management.base import QueueCommand
from sqlqueue.management.commands.queuerequests import follow, requested_by
from sqlqueue.operations.replay import DeadLetterSelection, discard
from sqlqueue.operations.replay_requests import request_replay
from sqlqueue.stats.dead_letters import FailureKind, failures, topics_with_dead_letters

RATE = arguments.decimal(LEAST_RATE, MOST_RATE)
DISCARDED_AT_ONCE = 1_000


class Command(QueueCommand):
    """Has the operations list, replay and discard."""

    every_database = ("list",)
    help = "Dead letters: list them by fingerprint, deliver them again, discard them."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the operations, each with its arguments."""
        operations = self.operations(parser)
        text = "count them by topic, group and fingerprint, the most frequent first; queuemessage shows one"
        listing = self.operation(operations, "list", self._list, text, json=True)
        listing.add_argument("--topic", default="", help="only of this topic")
        listing.add_argument("--group", default="", help="only of this group")
        text = "deliver them again; the consumer processes carry it out"
        replaying = self.operation(operations, "replay", self._replay, text, caution=True)
        discarding = self.operation(operations, "discard", self._discard, "delete them for good", caution=True)
        for choosing in (replaying, discarding):
            choosing.add_argument("topic", help="the topic that they were published to (not the dead-letter topic)")
            choosing.add_argument("--group", default="", help="only of this group")
            choosing.add_argument(
                "--fingerprint", default="", help="only those with this fingerprint, as list shows it"
            )
            choosing.add_argument(
                "--offset", type=arguments.offset, action="append", default=[], help="only this one (repeatable)"
            )
        replaying.add_argument("--rate", type=RATE, help="at most so many a second")
        replaying.add_argument(
            "--trial", action="store_true", help="deliver the oldest first, and the others once it is acked"
        )
        replaying.add_argument("--wait", action="store_true", help="take part in it, and exit when it is complete")

    def _list(self, options: dict[str, Any]) -> None:
        log = self.reading_log()
        if options["topic"] and not has_nothing_of(self.log, options["topic"], log):
            known_topic(log, options["topic"])
        topics = [options["topic"]] if options["topic"] else topics_with_dead_letters(log)
        found = failures(log, topics, options["group"])
        if self.json:
            self.as_json({"kinds": found.kinds, "topics_with_more": found.unread, "hidden": found.hidden})
            return
        if not found.kinds:
            self.say("There are no dead letters.")
            return
        self.table(("count", "topic", "group", "last", "sample", "fingerprint"), map(_row, found.kinds))
        if found.hidden:
            self.say(f"And {found.hidden} rarer kinds.")
        for topic in found.unread:
            self.say(f"Topic {topic!r} has more than were read.")

    def _replay(self, options: dict[str, Any]) -> None:
        count, _ = self._count(options)
        if not count and not options["dry_run"]:
            raise CommandError("nothing to replay")
        if self.proceed(options, f"Deliver {count} dead letters of topic {options['topic']!r} again?"):
            chosen = {name: options[name] for name in ("group", "fingerprint", "rate", "trial")}
            by = requested_by("queuedlq")
            offsets = options["offset"] or None
            request = request_replay(self.log, options["topic"], **chosen, offsets=offsets, requested_by=by)
            follow(self, request, "were delivered again", options["wait"])

    def _discard(self, options: dict[str, Any]) -> None:
        count, through = self._count(options)
        nothing = "" if count or options["dry_run"] else "There is nothing to discard."
        if self.proceed(options, f"Delete {count} dead letters of topic {options['topic']!r} for good?", nothing):
            # Later dead letters lie above `through`: the operator was not asked about those.
            chosen = {name: options[name] for name in ("group", "fingerprint")} | {
                "offsets": options["offset"] or None,
                "database": self.log.alias,
            }
            deleted = 0
            with self.progress("discard", count) as progress:
                while some := discard(options["topic"], **chosen, through=through, limit=DISCARDED_AT_ONCE):
                    deleted += some
                    progress.reach(deleted)
            self.done(f"Deleted {deleted} dead letters.")

    def _count(self, options: dict[str, Any]) -> tuple[int, int]:
        """Return how many dead letters the options choose, and the offset of the last one; print how many."""
        known_topic(self.log, options["topic"])
        offsets = sorted(set(options["offset"])) or None
        selection = DeadLetterSelection(options["topic"], options["group"], options["fingerprint"], offsets)
        count, through = selection.extent(self.log)
        self.say(f"{count} dead letters of topic {options['topic']!r} are chosen.")
        return count, through


def _row(kind: FailureKind) -> tuple[object, ...]:
    last = f"{kind.last_at:%Y-%m-%d %H:%M}" if kind.last_at else "—"
    return kind.dead_letters, kind.topic, kind.group, last, kind.offset, kind.fingerprint or "—"
