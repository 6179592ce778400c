"""Look at dead letters, deliver them again, discard them."""

from __future__ import annotations

import getpass
from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any

from django.core.management.base import CommandError

from sqlqueue.log import replay
from sqlqueue.log.letters import failures, topics_with_letters
from sqlqueue.log.redrive import Choice, discard
from sqlqueue.management import arguments
from sqlqueue.management.base import INTERRUPTED, QueueCommand
from sqlqueue.management.places import known_topic
from sqlqueue.models import Message, Replay
from sqlqueue.models.replay import CANCELLED, DONE

RATE = arguments.decimal(replay.LEAST_RATE, replay.MOST_RATE)
DISCARDED_AT_ONCE = 1_000
LOOK_EVERY = 0.5  # seconds, while waiting for an order


class Command(QueueCommand):
    """One verb each: list, show, replay, orders, cancel, discard."""

    help = "Dead letters: list them by what went wrong, show one, deliver them again, discard them."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the verbs."""
        verbs = self.add_verbs(parser)
        listing = verbs.add_parser("list", help="by topic, group and fingerprint, the most frequent first")
        listing.add_argument("--topic", default="", help="only of this topic")
        listing.add_argument("--group", default="", help="only of this group")
        self.add_json(listing)
        showing = verbs.add_parser("show", help="one dead letter with its payload, headers and error")
        showing.add_argument(
            "offset", type=arguments.offset, help="its own offset in the dead-letter topic, as list shows it"
        )
        self.add_json(showing)
        replaying = verbs.add_parser("replay", help="order them to be delivered again; consumer processes do it")
        _add_choice(replaying)
        replaying.add_argument("--rate", type=RATE, help="at most so many a second")
        replaying.add_argument("--trial", action="store_true", help="the oldest first, the others once it is acked")
        replaying.add_argument("--wait", action="store_true", help="take part in it, and end when it has ended")
        self.add_caution(replaying)
        ordering = verbs.add_parser("orders", help="the replays that were ordered, newest first")
        self.add_json(ordering)
        cancelling = verbs.add_parser("cancel", help="stop a replay; what it has delivered stays delivered")
        cancelling.add_argument("number", type=arguments.offset)
        discarding = verbs.add_parser("discard", help="delete them for good")
        _add_choice(discarding)
        self.add_caution(discarding)

    def handle(self, *args: Any, **options: Any) -> None:
        """Do what the verb says."""
        verbs: dict[str, Callable[[dict[str, Any]], None]] = {
            "list": self._list,
            "show": self._show,
            "replay": self._replay,
            "orders": self._orders,
            "cancel": self._cancel,
            "discard": self._discard,
        }
        verbs[options["verb"]](options)

    def _list(self, options: dict[str, Any]) -> None:
        if options["topic"]:
            known_topic(self.alias, options["topic"])
        topics = [options["topic"]] if options["topic"] else topics_with_letters(self.alias)
        found = failures(self.alias, topics, options["group"])
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
                    kind.letters,
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
        letter = Message.objects.using(self.alias).dead_letters().filter(offset=options["offset"]).first()
        if letter is None:
            raise CommandError(f"there is no dead letter at offset {options['offset']}: `queuedlq list` names samples")
        told = {
            "offset": letter.offset,
            "topic": letter.original_topic,
            "original_offset": letter.original_offset,
            "partition": letter.partition,
            "group": letter.failed_group,
            "key": letter.partition_key,
            "failed_at": letter.failed_at,
            "attempts": letter.failure_count,
            "fingerprint": letter.fingerprint,
            "headers": letter.headers,
            "payload": letter.payload,
            "error": letter.last_error or "",
        }
        if options["json"]:
            self.as_json(told)
            return
        for name in ("offset", "topic", "original_offset", "partition", "group", "key", "failed_at", "attempts"):
            self.say(f"{name:<16} {told[name]}")
        self.say(f"{'fingerprint':<16} {letter.fingerprint}")
        for name in ("headers", "payload"):
            self.say(f"{name}:")
            self.as_json(told[name])
        self.say("error:")
        self.say_lines(letter.last_error or "")

    # -- replaying ----------------------------------------------------------------------------------------------------

    def _replay(self, options: dict[str, Any]) -> None:
        count, _ = self._chosen(options)
        if options["dry_run"]:
            self.say(f"{count} dead letters would be delivered again. Nothing was done.")
            return
        if not count:
            raise CommandError("there are no such dead letters: nothing to replay")
        self.confirm(f"Deliver {count} dead letters of topic {options['topic']!r} again?", options)
        order = replay.order(
            self.alias,
            options["topic"],
            group=options["group"],
            fingerprint=options["fingerprint"],
            offsets=options["offset"] or None,
            rate=options["rate"],
            trial=options["trial"],
            ordered_by=_who(),
        )
        self.say(f"Ordered as number {order.pk}: {order.total} dead letters.")
        if options["wait"]:
            self._wait(order)
        else:
            self.say("The consumer processes carry it out; `queuedlq orders` tells how far they are.")

    def _wait(self, order: Replay) -> None:
        try:
            with self.progress("replay", order.total) as progress:
                while order.active:
                    more = replay.carry_out(self.alias)
                    order.refresh_from_db(using=self.alias)
                    progress.reach(order.done)
                    if order.active and not more:
                        self.pause(LOOK_EVERY)
        except KeyboardInterrupt:
            text = f"it goes on without you: `queuedlq cancel {order.pk}` stops it"
            raise CommandError(text, returncode=INTERRUPTED) from None
        if order.state != DONE:
            raise CommandError(f"{order.state} after {order.done} of {order.total}: {order.note or 'by somebody'}")
        self.say(f"Done: {order.done} were delivered again.", done=True)
        if order.note:
            self.note(f"The last one that was not: {order.note}")

    def _orders(self, options: dict[str, Any]) -> None:
        orders = list(Replay.objects.using(self.alias).order_by("-id")[:20])
        names = ("id", "topic", "consumer_group", "fingerprint", "state", "done", "total", "rate", "ordered_by", "note")
        if options["json"]:
            self.as_json([{name: getattr(order, name) for name in names} for order in orders])
            return
        if not orders:
            self.say("No replay was ever ordered.")
            return
        headings = ("number", "topic", "group", "fingerprint", "state", "done", "of", "rate", "by", "note")
        rows = [["—" if getattr(one, name) in (None, "") else getattr(one, name) for name in names] for one in orders]
        self.table(headings, rows)

    def _cancel(self, options: dict[str, Any]) -> None:
        order = Replay.objects.using(self.alias).filter(pk=options["number"]).first()
        if order is None:
            raise CommandError(f"there is no order {options['number']}: `queuedlq orders` lists them")
        if replay.cancel(self.alias, order.pk):
            self.say(f"Order {order.pk} is {CANCELLED}.", done=True)
        else:
            self.say(f"There was nothing to do: order {order.pk} is {order.state}.")

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
        # What dies from now on stands above `through`: nobody has seen it.
        which = {name: options[name] for name in ("group", "fingerprint")} | {"offsets": options["offset"] or None}
        done = 0
        with self.progress("discard", count) as progress:
            while some := discard(options["topic"], **which, through=through, limit=DISCARDED_AT_ONCE):
                done += some
                progress.reach(done)
        self.say(f"Deleted {done} dead letters.", done=True)

    def _chosen(self, options: dict[str, Any]) -> tuple[int, int]:
        """Return how many dead letters are meant, and where the last one stands."""
        known_topic(self.alias, options["topic"])
        return _choice(options).extent(self.alias)


def _add_choice(parser: ArgumentParser) -> None:
    parser.add_argument("topic", help="where they were published to (not the dead-letter topic)")
    parser.add_argument("--group", default="", help="only of this group")
    parser.add_argument("--fingerprint", default="", help="only those that failed like this, as list names it")
    parser.add_argument(
        "--offset", type=arguments.offset, action="append", default=[], help="only this one (repeatable)"
    )


def _choice(options: dict[str, Any]) -> Choice:
    return Choice(options["topic"], options["group"], options["fingerprint"], sorted(set(options["offset"])) or None)


def _who() -> str:
    try:
        return f"{getpass.getuser()} (queuedlq)"[:150]
    except (KeyError, OSError, ImportError):  # a user without a name, as in many containers
        return "queuedlq"
