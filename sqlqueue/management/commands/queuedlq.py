"""Dead letters: list, replay, discard (`queuedlq`)."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any

from django.core.management.base import CommandError

from sqlqueue.core.bounds import LEAST_RATE, MOST_RATE
from sqlqueue.management import arguments, requests
from sqlqueue.management.base import QueueCommand
from sqlqueue.management.databases import has_nothing_of
from sqlqueue.management.positions import known_topic
from sqlqueue.models import Message
from sqlqueue.models.request import REPLAY
from sqlqueue.operations.replay import DeadLetterSelection, discard
from sqlqueue.operations.replay_requests import request_replay
from sqlqueue.stats.bodies import bodies
from sqlqueue.stats.dead_letters import failures, topics_with_dead_letters

RATE = arguments.decimal(LEAST_RATE, MOST_RATE)
DISCARDED_AT_ONCE = 1_000
NAME = "queuedlq"


class Command(QueueCommand):
    """Has the operations list, show, replay, orders, cancel and discard."""

    every_database = ("list", "orders")
    help = "Dead letters: list them by fingerprint, show one, deliver them again, discard them."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the operations, each with its arguments."""
        operations = self.add_operations(parser)
        listing = operations.add_parser(
            "list", help="count them by topic, group and fingerprint, the most frequent first"
        )
        listing.add_argument("--topic", default="", help="only of this topic")
        listing.add_argument("--group", default="", help="only of this group")
        self.add_json(listing)
        showing = operations.add_parser("show", help="one dead letter with its payload, headers and error")
        showing.add_argument(
            "offset", type=arguments.offset, help="its offset in the dead-letter topic, as list shows it"
        )
        self.add_json(showing)
        replaying = operations.add_parser("replay", help="deliver them again; the consumer processes carry it out")
        _add_choice(replaying)
        replaying.add_argument("--rate", type=RATE, help="at most so many a second")
        replaying.add_argument(
            "--trial", action="store_true", help="deliver the oldest first, and the others once it is acked"
        )
        replaying.add_argument("--wait", action="store_true", help="take part in it, and exit when it is complete")
        self.add_caution(replaying)
        ordering = operations.add_parser("orders", help="list the replays, the newest first")
        self.add_json(ordering)
        cancelling = operations.add_parser(
            "cancel", help="stop a replay; what it has delivered already stays delivered"
        )
        cancelling.add_argument("number", type=arguments.offset)
        discarding = operations.add_parser("discard", help="delete them for good")
        _add_choice(discarding)
        self.add_caution(discarding)

    def handle(self, *args: Any, **options: Any) -> None:
        """Carry out the chosen operation."""
        operations: dict[str, Callable[[dict[str, Any]], None]] = {
            "list": self._list,
            "show": self._show,
            "replay": self._replay,
            "orders": self._orders,
            "cancel": self._cancel,
            "discard": self._discard,
        }
        operations[options["operation"]](options)

    def _list(self, options: dict[str, Any]) -> None:
        log = self.reading_log()
        if options["topic"] and not has_nothing_of(self.log, options["topic"], log):
            known_topic(log, options["topic"])
        topics = [options["topic"]] if options["topic"] else topics_with_dead_letters(log)
        found = failures(log, topics, options["group"])
        if options["json"]:
            self.as_json({"kinds": found.kinds, "topics_with_more": found.unread, "hidden": found.hidden})
            return
        if not found.kinds:
            self.say("There are no dead letters.")
            return
        self.table(
            ("count", "topic", "group", "last", "sample", "fingerprint"),
            [
                (
                    kind.dead_letters,
                    kind.topic,
                    kind.group,
                    f"{kind.last_at:%Y-%m-%d %H:%M}" if kind.last_at else "—",
                    kind.offset,
                    kind.fingerprint or "—",
                )
                for kind in found.kinds
            ],
        )
        if found.hidden:
            self.say(f"And {found.hidden} rarer kinds.")
        for topic in found.unread:
            self.say(f"Topic {topic!r} has more than were read.")

    def _show(self, options: dict[str, Any]) -> None:
        log = self.reading_log()
        dead_letter = (
            Message.objects.using(log.alias).dead_letters().filter(offset=options["offset"]).defer("body").first()
        )
        if dead_letter is None:
            raise CommandError(f"there is no dead letter at offset {options['offset']}: `queuedlq list` names samples")
        body = bodies(log, Message, [dead_letter.pk]).get(dead_letter.pk)
        values = {
            "offset": dead_letter.offset,
            "topic": dead_letter.original_topic,
            "original_offset": dead_letter.original_offset,
            "partition": dead_letter.partition,
            "group": dead_letter.failed_group,
            "key": dead_letter.partition_key,
            "failed_at": dead_letter.failed_at,
            "attempts": dead_letter.failure_count,
            "fingerprint": dead_letter.fingerprint,
            "headers": dead_letter.headers,
            "payload": dead_letter.payload if body is None else {"bytes": body.size, "content_type": body.content_type},
            "error": dead_letter.last_error or "",
        }
        if options["json"]:
            self.as_json(values)
            return
        for name in ("offset", "topic", "original_offset", "partition", "group", "key", "failed_at", "attempts"):
            self.say(f"{name:<16} {values[name]}")
        self.say(f"{'fingerprint':<16} {dead_letter.fingerprint}")
        for name in ("headers", "payload"):
            self.say(f"{name}:")
            self.as_json(values[name])
        self.say("error:")
        self.say_lines(dead_letter.last_error or "")

    # -- replaying ----------------------------------------------------------------------------------------------------

    def _replay(self, options: dict[str, Any]) -> None:
        count, _ = self._chosen(options)
        if options["dry_run"]:
            self.say(f"{count} dead letters would be delivered again. Nothing was done.")
            return
        if not count:
            raise CommandError("there are no such dead letters: nothing to replay")
        self.confirm(f"Deliver {count} dead letters of topic {options['topic']!r} again?", options)
        request = request_replay(
            self.log,
            options["topic"],
            group=options["group"],
            fingerprint=options["fingerprint"],
            offsets=options["offset"] or None,
            rate=options["rate"],
            trial=options["trial"],
            requested_by=requests.requested_by(NAME),
        )
        self.say(f"Ordered as number {request.pk}: {request.total} dead letters.")
        if options["wait"]:
            requests.wait(self, request, NAME)
            self.say(f"Done: {request.done} were delivered again.", done=True)
            if request.note:
                self.note(f"The last one that could not be delivered: {request.note}")
        else:
            self.say("The consumer processes carry it out; `queuedlq orders` shows the progress.")

    def _orders(self, options: dict[str, Any]) -> None:
        requests.show_list(self, REPLAY, {"fingerprint": "fingerprint"}, options["json"], noted=True)

    def _cancel(self, options: dict[str, Any]) -> None:
        requests.cancel(self, REPLAY, options["number"], NAME)

    # -- discarding ---------------------------------------------------------------------------------------------------

    def _discard(self, options: dict[str, Any]) -> None:
        count, through = self._chosen(options)
        if options["dry_run"]:
            self.say(f"{count} dead letters would be deleted. Nothing was done.")
            return
        if not count:
            self.say("There are no such dead letters: nothing to discard.")
            return
        self.confirm(f"Delete {count} dead letters of topic {options['topic']!r} for good?", options)
        # Later dead letters lie above `through`: the operator was not asked about those.
        which = {name: options[name] for name in ("group", "fingerprint")} | {"offsets": options["offset"] or None}
        done = 0
        with self.progress("discard", count) as progress:
            while some := discard(options["topic"], **which, through=through, limit=DISCARDED_AT_ONCE):
                done += some
                progress.reach(done)
        self.say(f"Deleted {done} dead letters.", done=True)

    def _chosen(self, options: dict[str, Any]) -> tuple[int, int]:
        """Return how many dead letters the options choose, and the offset of the last one."""
        known_topic(self.log, options["topic"])
        return _choice(options).extent(self.log)


def _add_choice(parser: ArgumentParser) -> None:
    parser.add_argument("topic", help="the topic that they were published to (not the dead-letter topic)")
    parser.add_argument("--group", default="", help="only of this group")
    parser.add_argument("--fingerprint", default="", help="only those with this fingerprint, as list shows it")
    parser.add_argument(
        "--offset", type=arguments.offset, action="append", default=[], help="only this one (repeatable)"
    )


def _choice(options: dict[str, Any]) -> DeadLetterSelection:
    return DeadLetterSelection(
        options["topic"], options["group"], options["fingerprint"], sorted(set(options["offset"])) or None
    )
