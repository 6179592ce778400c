"""Publishing from a shell or a file (`queuepublish`)."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, get_args

from django.core.management.base import CommandError

from sqlqueue.core.new_message import NewMessage, OnConflict
from sqlqueue.core.settings import MOST_PRIORITIES
from sqlqueue.exceptions import LONGEST_DELAY, SHORTEST_LIFE, InvalidMessage
from sqlqueue.log.publish import check, publish, publish_many
from sqlqueue.management import arguments, message_lines
from sqlqueue.management.base import QueueCommand

AT_ONCE = 1_000
STDIN = "-"
# Options that are publish's own.
NAMED = ("key", "id", "priority", "delay", "at", "on_conflict", "expires", "content_type", "unique_for")
OF_ONE = ("payload", *NAMED, "header", "file")


class Command(QueueCommand):
    """Calls publish for one message, and publish_many for a file."""

    home_database = ("",)
    help = "Publish a message, or a file of them."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the command's arguments."""
        parser.add_argument("topic")
        parser.add_argument("payload", nargs="?", help="JSON (default, and -: read from standard input)")
        parser.add_argument("--key", help="messages of one key keep their order")
        parser.add_argument("--id", help="publishes nothing if topic and key have a message of this id")
        parser.add_argument(
            "--on-conflict",
            choices=get_args(OnConflict),
            help="with --id or --unique-for: whether such a message that is scheduled stays (default), or is replaced",
        )
        parser.add_argument("--header", action="append", metavar="NAME=VALUE", help="repeatable")
        parser.add_argument("--priority", type=arguments.whole(0, MOST_PRIORITIES - 1), help="lower first")
        times = parser.add_mutually_exclusive_group()
        times.add_argument("--delay", type=arguments.decimal(0, LONGEST_DELAY), help="seconds")
        times.add_argument("--at", type=arguments.moment, help="2030-12-24T18:00:00+01:00: not before this time")
        parser.add_argument(
            "--expires",
            type=arguments.decimal(SHORTEST_LIFE, LONGEST_DELAY),
            help="seconds after which it is a dead letter instead of a delivery, from now or from when it is due",
        )
        parser.add_argument(
            "--unique-for",
            type=arguments.unique_for,
            metavar="key|SECONDS|no",
            help="publish nothing while a message of this key is pending (key), for so many seconds at most",
        )
        parser.add_argument(
            "--file", metavar="FILE", help="the payload is these bytes, and no JSON (- is standard input)"
        )
        parser.add_argument("--content-type", metavar="TYPE", help="of these bytes")
        parser.add_argument(
            "--messages",
            metavar="FILE",
            help='an object in each line (- is standard input): {"payload": …}, or "body" and "content_type" for bytes '
            f"in base64; optionally with {', '.join(message_lines.PARTS[3:])}",
        )
        parser.add_argument("--dry-run", action="store_true", help="check everything, publish nothing")
        parser.add_argument("--json", action="store_true", help="print JSON, for scripts")

    def handle(self, *args: Any, **options: Any) -> None:
        """Publish one message or a file. Raises CommandError and InvalidMessage."""
        if options["messages"] is not None:
            self._publish_file(options)
        else:
            self._publish_one(options)

    def _publish_one(self, options: dict[str, Any]) -> None:
        payload = self._bytes(options) if options["file"] is not None else self._json(options["payload"])
        named = {name: options[name] for name in NAMED if options[name] is not None}
        named["headers"] = _headers(options["header"] or [])
        if options["dry_run"]:
            check(options["topic"], [NewMessage(payload, **named)])
            self.say("The message could be published. Nothing was.")
            return
        published = publish(options["topic"], payload, **named)
        if options["json"]:
            values = {name: getattr(published, name) for name in ("offset", "id", "created", "status")}
            self.as_json(values, one_line=True)
        elif published.status == "ignored":
            state = "scheduled" if published.offset is None else f"at offset {published.offset}"
            self.say(f"There was nothing to do: id {published.id} is {state} already.")
        else:
            done = f"Published at offset {published.offset}"
            if published.offset is None:
                at = options["at"]
                done = f"Scheduled {'in ' + format(options['delay'], 'g') + ' s' if at is None else f'for {at}'}"
            replaced = " It has replaced the scheduled one." if published.status == "updated" else ""
            self.say(f"{done}, id {published.id}.{replaced}", done=True)

    def _json(self, given: str | None) -> Any:
        text = sys.stdin.read() if given in (None, STDIN) else given
        return _parsed(str(text), "the payload", "To publish a text, quote it as JSON does: '\"like this\"'.")

    def _bytes(self, options: dict[str, Any]) -> bytes:
        name = options["file"]
        if options["payload"] is not None:
            raise CommandError("give a payload or --file, not both")
        try:
            return sys.stdin.buffer.read() if name == STDIN else Path(name).read_bytes()
        except OSError as error:
            raise CommandError(f"{name} cannot be read: {error.strerror}") from error

    def _publish_file(self, options: dict[str, Any]) -> None:
        if any(options[name] is not None for name in OF_ONE):
            raise CommandError("with --messages the file says all of each message: leave the others out")
        name, topic = options["messages"], options["topic"]
        messages = (message_lines.read(number, message, topic) for number, message in _json_lines(name))
        read = created = updated = 0
        with self.progress("publish") as progress:
            try:
                while some := list(islice(messages, AT_ONCE)):
                    if options["dry_run"]:
                        check(topic, some)
                    else:
                        published = publish_many(topic, some)
                        created, updated = created + published.created, updated + published.updated
                    read += len(some)
                    progress.reach(read)
            except InvalidMessage as error:
                done = f" The first {read} messages are published." if read and not options["dry_run"] else ""
                raise CommandError(f"{name}: {error}{done}") from error
        if options["json"]:
            self.as_json({"read": read, "created": created, "updated": updated}, one_line=True)
        elif options["dry_run"]:
            self.say(f"{read} messages could be published. Nothing was.")
        else:
            counts = {"scheduled ones replaced": updated, "were there already": read - created - updated}
            also = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
            self.say(f"Published {created} messages{f' ({also})' if also else ''}.", done=True)


def _json_lines(name: str) -> Iterator[tuple[int, Any]]:
    try:
        with sys.stdin if name == STDIN else Path(name).open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, _parsed(line, f"line {number}")
    except OSError as error:
        raise CommandError(f"{name} cannot be read: {error.strerror}") from error


def _parsed(text: str, name: str, hint: str = "") -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidMessage(f"{name} is not JSON: {error}. {hint}".rstrip()) from None


def _headers(pairs: list[str]) -> dict[str, str] | None:
    headers = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise CommandError(f"--header takes NAME=VALUE, not {pair!r}")
        headers[name] = value
    return headers or None
