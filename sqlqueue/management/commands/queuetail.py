"""Following a topic (`queuetail`)."""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any

from django.core.management.base import CommandError
from django.db import Error as DatabaseError

from sqlqueue.conf import settings
from sqlqueue.core.filters import NESTED, Filter
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX
from sqlqueue.core.logfmt import printable
from sqlqueue.core.settle_plan import FetchedMessage
from sqlqueue.database import retries
from sqlqueue.database.horizon import highest_offset
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log.groups import LATEST
from sqlqueue.management import arguments
from sqlqueue.management.arguments import HELP, checked_partition, known_groups, known_topic, offset_above
from sqlqueue.management.base import QueueCommand
from sqlqueue.management.message_lines import told
from sqlqueue.models import Message
from sqlqueue.payloads.versions import content_type_of
from sqlqueue.stats.search import Tail

LIMIT = arguments.whole(1, arguments.HIGHEST_OFFSET)
NOTE_AFTER = 2.0  # seconds for which an open transaction may hold the tail back before the command says so


class Command(QueueCommand):
    """Reads as no group: it registers and acks nothing, and collection does not wait for it."""

    help = "Print a topic's messages as they are committed, in order, until Ctrl-C. Reads only."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the command's arguments."""
        parser.add_argument("topic")
        parser.add_argument("--from", dest="start", default=LATEST, metavar="WHERE", help=f"{HELP}, earliest, latest")
        parser.add_argument("--key", help="only messages of this key")
        parser.add_argument("--partition", type=arguments.partition, help="only this partition")
        parser.add_argument("--group", help="only messages for this group or for all groups")
        parser.add_argument(
            "--where",
            action="append",
            default=[],
            metavar="CONDITION",
            help="only messages that match, such as headers.country=DE, 'payload.total__gte=100' or "
            '\'headers.country=["DE", "AT"]\': the value is JSON, or else a text (repeatable: all have to match)',
        )
        parser.add_argument("--limit", type=LIMIT, help="exit after so many messages")
        parser.add_argument("--no-follow", action="store_true", help="exit at the end of the log")
        parser.add_argument(
            "--json", action="store_true", help="a JSON object in each line, as queuepublish --messages reads them"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the messages until Ctrl-C, --limit, or the end of the log. Raises ConfigurationError."""
        limit = options["limit"]
        topic = known_topic(self.log, options["topic"])
        if options["group"] is not None:
            known_groups(self.log, topic.name, [options["group"]])
        partition = checked_partition(self.log, topic, options["partition"])
        key, where = options["key"], _filter(options["where"])
        of_key = None if not key or topic.name.endswith(DEAD_LETTER_SUFFIX) else key
        tail = Tail(self.log, topic, offset_above(self.log, options["start"]), partition, of_key)
        last = highest_offset(self.log) if options["no_follow"] else None

        def wanted(message: Message) -> bool:
            for_group = options["group"] is None or message.target_group in ("", options["group"])
            if not for_group or (key is not None and message.partition_key != key):
                return False
            return where is None or where.matches(_fetched(message))

        try:
            self._follow(
                tail, wanted, limit, last, (lambda message: _json(told(message))) if options["json"] else _as_text
            )
        except KeyboardInterrupt:
            return  # Ctrl-C ends it

    def _follow(
        self,
        tail: Tail,
        wanted: Callable[[Message], bool],
        limit: int | None,
        last: int | None,
        as_line: Callable[[Message], str],
    ) -> None:
        printed = 0
        held_since: float | None = None
        while True:
            messages = self._read(tail)
            for message in filter(wanted, messages):
                if last is not None and message.offset > last:
                    return
                self.stdout.write(printable(as_line(message)))
                printed += 1
                if printed == limit:
                    return
            if last is not None and tail.after >= last:
                return
            held_since = (held_since or time.monotonic()) if tail.held_back else None
            if held_since is not None and 0 < held_since < time.monotonic() - NOTE_AFTER:
                self.note("waiting for an open transaction that publishes")
                held_since = float("inf")  # note it once
            if not messages:
                self.pause(settings.IDLE_POLL_INTERVAL)

    def _read(self, tail: Tail) -> list[Message]:
        try:
            return tail.read()
        except DatabaseError as error:
            if retries.classify(error) is not retries.ErrorKind.GONE:
                raise
            self.note(f"the database does not answer: {error}")
            retries.drop_connection(self.log)
            tail.forget()
            return []


def _filter(conditions: list[str]) -> Filter | None:
    """Return the filter of what --where says. Raises CommandError for what it cannot understand."""
    found: dict[str, object] = {}
    for condition in conditions:
        name, equals, text = condition.partition("=")
        if not equals:
            raise CommandError(f"--where {condition!r}: write NAME=VALUE, such as headers.country=DE")
        if name in found:
            raise CommandError(f"--where: {name!r} is named twice; for one of several values write {name}='[…, …]'")
        found[name] = _value(name, text)
    try:
        return Filter(found) if found else None
    except ConfigurationError as error:
        raise CommandError(f"--where: {error}") from None


def _value(name: str, text: str) -> object:
    try:
        value = json.loads(text, parse_constant=str)
    except (ValueError, RecursionError):
        return text
    return value if name.startswith(NESTED) or isinstance(value, list) else text


def _fetched(message: Message) -> FetchedMessage:
    """Return a message as a consumer's fetch reads it."""
    payload, headers = _json(message.payload), None if message.headers is None else _json(message.headers)
    key, id, created, group = message.partition_key, message.message_id or "", message.created_at, message.target_group
    return FetchedMessage(message.offset, key, id, payload, headers, created, group, body=message.body)


def _as_text(message: Message) -> str:
    position = f"{message.offset} {message.created_at:%Y-%m-%dT%H:%M:%S.%fZ} [{message.partition}]"
    group = f" for={message.target_group}" if message.target_group else ""
    payload = _json(message.payload)
    if message.body is not None:
        payload = f"<{len(message.body)} bytes, {content_type_of(message.headers)}>"
    return f"{position} key={message.partition_key or '—'} id={message.message_id}{group} {payload}"


def _json(value: object) -> str:
    """Return JSON as it was stored: plain SQL may have inserted values that publish refuses."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
