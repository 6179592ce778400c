"""Follow a topic."""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any

from django.core.management.base import CommandError
from django.db import Error as DatabaseError

from sqlqueue.conf import settings
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX, partition_of
from sqlqueue.database import faults
from sqlqueue.database.horizon import highest_offset
from sqlqueue.log.groups import LATEST
from sqlqueue.log.tail import Tail
from sqlqueue.management import arguments
from sqlqueue.management.base import QueueCommand
from sqlqueue.management.places import HELP, known_groups, known_topic, offset_above
from sqlqueue.models import Message

LIMIT = arguments.whole(1, arguments.HIGHEST_OFFSET)
PATIENCE = 2.0  # seconds before it is said that a transaction holds the tail up


class Command(QueueCommand):
    """Reads as nobody: nothing is registered, acked or held back by it."""

    help = "Print a topic's messages as they are committed, in order, until Ctrl-C. Reads only."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument("topic")
        parser.add_argument("--from", dest="start", default=LATEST, metavar="WHERE", help=f"{HELP}, earliest, latest")
        parser.add_argument("--key", help="only messages of this key")
        parser.add_argument("--partition", type=arguments.partition, help="only this partition")
        parser.add_argument("--group", help="only what this group gets: not what was published for another alone")
        parser.add_argument("--limit", type=LIMIT, help="end after so many messages")
        parser.add_argument("--no-follow", action="store_true", help="end at what is there now")
        parser.add_argument(
            "--json", action="store_true", help="a JSON object a line; queuepublish --messages takes it"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Follow it."""
        limit = options["limit"]
        topic = known_topic(self.alias, options["topic"])
        if options["group"] is not None:
            known_groups(self.alias, topic.name, [options["group"]])
        partition = options["partition"]
        if partition is not None and not 0 <= partition < topic.partitions:
            raise CommandError(f"topic {topic.name!r} has the partitions 0 to {topic.partitions - 1}, not {partition}")
        key = options["key"]
        if partition is None and key and not topic.name.endswith(DEAD_LETTER_SUFFIX):
            partition = partition_of(key, topic.partitions)
        tail = Tail(self.alias, topic, offset_above(self.alias, options["start"]), partition)
        last = highest_offset(self.alias) if options["no_follow"] else None

        def wanted(message: Message) -> bool:
            for_it = options["group"] is None or message.target_group in ("", options["group"])
            return for_it and (key is None or message.partition_key == key)

        try:
            self._follow(tail, wanted, limit, last, _as_json if options["json"] else _as_text)
        except KeyboardInterrupt:
            return  # that is how following ends

    def _follow(
        self,
        tail: Tail,
        wanted: Callable[[Message], bool],
        limit: int | None,
        last: int | None,
        form: Callable[[Message], str],
    ) -> None:
        printed = 0
        held_since: float | None = None
        while True:
            messages = self._read(tail)
            for message in filter(wanted, messages):
                if last is not None and message.offset > last:
                    return
                self.say(form(message))
                printed += 1
                if printed == limit:
                    return
            if last is not None and tail.after >= last:
                return
            held_since = (held_since or time.monotonic()) if tail.held_back else None
            if held_since is not None and 0 < held_since < time.monotonic() - PATIENCE:
                self.note("waiting for a transaction that publishes and is still open")
                held_since = float("inf")  # said once
            if not messages:
                self.pause(settings.IDLE_POLL_INTERVAL)

    def _read(self, tail: Tail) -> list[Message]:
        try:
            return tail.read()
        except DatabaseError as error:
            if faults.classify(error) is not faults.Fault.GONE:
                raise
            self.note(f"the database does not answer: {error}")
            faults.drop_connection(self.alias)
            tail.forget()
            return []


def _as_text(message: Message) -> str:
    place = f"{message.offset} {message.created_at:%Y-%m-%dT%H:%M:%S.%fZ} [{message.partition}]"
    group = f" for={message.target_group}" if message.target_group else ""
    return f"{place} key={message.partition_key or '—'} id={message.message_id}{group} {_json(message.payload)}"


def _as_json(message: Message) -> str:
    told = {
        "offset": message.offset,
        "topic": message.topic,
        "partition": message.partition,
        "priority": message.priority,
        "key": message.partition_key,
        "id": message.message_id,
        "payload": message.payload,
        "headers": message.headers,
        "created_at": message.created_at.isoformat(),
        "target_group": message.target_group,
    }
    return _json(told)


def _json(value: object) -> str:
    """As it was stored: what plain SQL has put in may be more than publish would take."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
