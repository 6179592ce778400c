"""Publish messages from a shell or a file."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from sqlqueue.conf import MOST_PRIORITIES
from sqlqueue.core.keys import did_you_mean
from sqlqueue.exceptions import LONGEST_DELAY, InvalidMessage
from sqlqueue.log.publish import NewMessage, check, publish, publish_many
from sqlqueue.management import arguments
from sqlqueue.management.base import QueueCommand

AT_ONCE = 1_000
STDIN = "-"
PARTS = ("payload", "key", "id", "headers", "priority")
IGNORED = ("offset", "topic", "partition", "created_at", "target_group")  # what queuetail --json tells beside them


class Command(QueueCommand):
    """What Python says with publish and publish_many."""

    help = "Publish a message, or a file of them."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument("topic")
        parser.add_argument("payload", nargs="?", help="JSON; left out, or -: read it from standard input")
        parser.add_argument("--key", default="", help="what keeps its order")
        parser.add_argument("--id", help="a second message of this id is no message")
        parser.add_argument("--header", action="append", default=[], metavar="NAME=VALUE", help="repeatable")
        parser.add_argument("--priority", type=arguments.whole(0, MOST_PRIORITIES - 1), default=0, help="lower first")
        parser.add_argument("--delay", type=arguments.decimal(0, LONGEST_DELAY), help="seconds")
        files = parser.add_mutually_exclusive_group()
        files.add_argument("--lines", metavar="FILE", help="a payload in each line (- is standard input)")
        files.add_argument(
            "--messages",
            metavar="FILE",
            help='an object in each line: {"payload": …} and perhaps key, id, headers, priority',
        )
        parser.add_argument("--dry-run", action="store_true", help="read and check everything, publish nothing")
        parser.add_argument("--json", action="store_true", help="print JSON, for scripts")

    def handle(self, *args: Any, **options: Any) -> None:
        """Publish."""
        if options["lines"] or options["messages"]:
            self._publish_file(options)
        else:
            self._publish_one(options)

    def _publish_one(self, options: dict[str, Any]) -> None:
        given = options["payload"]
        text = sys.stdin.read() if given in (None, STDIN) else given
        payload = _parsed(text, "the payload", "To publish a text, quote it as JSON does: '\"like this\"'.")
        named = {name: options[name] for name in ("key", "id", "priority")} | {"headers": _headers(options["header"])}
        if options["dry_run"]:
            check(options["topic"], [NewMessage(payload, **named)])
            self.say("The message could be published. Nothing was.")
            return
        published = publish(options["topic"], payload, delay=options["delay"], **named)
        if options["json"]:
            told = {"offset": published.offset, "id": published.id, "created": published.created}
            self.as_json(told, indent=None)
        elif not published.created:
            self.say(f"There was nothing to do: id {published.id} is at offset {published.offset} already.")
        elif published.offset is None:
            self.say(f"Scheduled in {options['delay']:g} s, id {published.id}.", done=True)
        else:
            self.say(f"Published at offset {published.offset}, id {published.id}.", done=True)

    def _publish_file(self, options: dict[str, Any]) -> None:
        if options["payload"] is not None or options["id"] is not None or options["delay"] is not None:
            raise CommandError("a payload, --id and --delay are for a single message, not for a file of them")
        name = options["lines"] or options["messages"]
        messages = self._whole(name) if options["messages"] else self._payloads(name, options)
        read = created = 0
        with self.progress("publish") as progress:
            try:
                while some := list(islice(messages, AT_ONCE)):
                    if options["dry_run"]:
                        check(options["topic"], some)
                    else:
                        created += publish_many(options["topic"], some).created
                    read += len(some)
                    progress.reach(read)
            except InvalidMessage as error:
                stands = f" The first {read} messages are published." if read and not options["dry_run"] else ""
                raise CommandError(f"{name}: {error}{stands}") from error
        if options["json"]:
            self.as_json({"read": read, "created": created}, indent=None)
        elif options["dry_run"]:
            self.say(f"{read} messages could be published. Nothing was.")
        else:
            known = f" ({read - created} were there already)" if read > created else ""
            self.say(f"Published {created} messages{known}.", done=True)

    def _payloads(self, name: str, options: dict[str, Any]) -> Iterator[NewMessage]:
        headers = _headers(options["header"])
        for _, payload in _json_lines(name):
            yield NewMessage(payload, key=options["key"], headers=headers, priority=options["priority"])

    def _whole(self, name: str) -> Iterator[NewMessage]:
        for number, message in _json_lines(name):
            if not isinstance(message, dict) or "payload" not in message:
                raise InvalidMessage(f'line {number} is no object with a "payload"')
            unknown = [part for part in message if part not in PARTS + IGNORED]
            if unknown:
                raise InvalidMessage(f"line {number}: no member {unknown[0]!r}.{did_you_mean(unknown[0], PARTS)}")
            parts = {part: message[part] for part in PARTS[1:] if message.get(part) is not None}
            yield NewMessage(message["payload"], **parts)


def _json_lines(name: str) -> Iterator[tuple[int, Any]]:
    try:
        with sys.stdin if name == STDIN else Path(name).open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, _parsed(line, f"line {number}")
    except OSError as error:
        raise CommandError(f"{name} cannot be read: {error.strerror}") from error


def _parsed(text: str, what: str, hint: str = "") -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidMessage(f"{what} is not JSON: {error}. {hint}".rstrip()) from None


def _headers(words: list[str]) -> dict[str, str] | None:
    headers = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals):
            raise CommandError(f"--header takes NAME=VALUE, not {word!r}")
        headers[name] = value
    return headers or None
