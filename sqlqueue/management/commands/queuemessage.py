"""One message, with what each group has made of it (`queuemessage`)."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError

from sqlqueue.core.keys import DEAD_LETTER_SUFFIX
from sqlqueue.database.log import Log
from sqlqueue.management import arguments
from sqlqueue.management.base import QueueCommand
from sqlqueue.models import Message
from sqlqueue.stats.group_status import GroupStatus
from sqlqueue.stats.message_status import MessageStatus, get_status, status_of
from sqlqueue.stats.search import bodies

GROUPS = ("group", "state", "attempts", "due", "progress", "result", "error")
# Of a dead letter.
FAILURE = ("original_topic", "original_offset", "failed_group", "failed_at", "failure_count", "fingerprint")
MOST_SHOWN = 60  # characters of a result or an error in the table; --json has all


class Command(QueueCommand):
    """Reads the tables only; it works while no consumer process runs."""

    help = "Show one message: its state, attempts, progress, result and error in every group, headers and payload."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the command's options."""
        parser.add_argument("topic", help="of a dead letter: the topic that it was published to")
        naming = parser.add_mutually_exclusive_group(required=True)
        naming.add_argument("--id", help="of the message with this id, and the key")
        naming.add_argument(
            "--offset", type=arguments.whole(1, arguments.HIGHEST_OFFSET), help="of the message at this offset"
        )
        parser.add_argument("--key", default="", help="the key, if the message has one (with --id)")
        self.add_json(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the message. Raises CommandError if there is none."""
        topic, offset = options["topic"], options["offset"]
        log = self.log if options["id"] is not None else self.reading_log()
        status = _by_id(topic, options["id"], options["key"]) if offset is None else _by_offset(log, topic, offset)
        stored = _stored(log, status.offset) if status.offset is not None else {}
        if self.json:
            self.as_json({**asdict(status), **stored})
            return
        where = "is scheduled" if status.offset is None else f"at offset {status.offset}"
        published = f", published {status.published_at:%Y-%m-%d %H:%M:%S} UTC" if status.published_at else ""
        of_key = f" of key {status.key!r}" if status.key else ""
        self.say(f"{status.topic} {status.id}{of_key} {where}{published}.")
        if status.groups:
            self.table(GROUPS, map(_row, status.groups.values()))
        else:
            self.say("No group is registered that gets it.")
        for group in status.groups.values():
            self._show_error(f"The last error in group {group.group}", group.error)
        self._show_error("The error of this dead letter", stored.pop("last_error", ""))
        for name, value in stored.items():
            self.say(
                f"{name}: {value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)}"
            )

    def _show_error(self, title: str, error: str) -> None:
        if error.strip():
            self.say(f"{title}:")
            self.say_lines(error.rstrip("\n"))


def _by_id(topic: str, id: str, key: str) -> MessageStatus:
    if (status := get_status(topic, id=id, key=key)) is not None:
        return status
    raise CommandError(
        f"topic {topic!r} has no message with the id {id!r} and key {key!r} (--key): it was never published, or it was"
        " collected or cancelled and no result of it is kept"
    )


def _by_offset(log: Log, topic: str, offset: int) -> MessageStatus:
    message = Message.objects.using(log.alias).filter(offset=offset).without_content().first()
    if message is None or message.topic not in (topic, topic + DEAD_LETTER_SUFFIX):
        where = "the log has none at it" if message is None else f"it is one of topic {message.topic!r}"
        raise CommandError(f"topic {topic!r} has no message at offset {offset}: {where}")
    return status_of(log, message)


def _stored(log: Log, offset: int) -> dict[str, Any]:
    """Return what the log has of a message: its headers and payload, and of a dead letter how it died."""
    message = Message.objects.using(log.alias).filter(offset=offset).defer("body").first()
    if message is None:
        return {}
    body = bodies(log, Message, [message.pk]).get(message.pk)
    payload = message.payload if body is None else {"bytes": body.size, "content_type": body.content_type}
    stored = {"partition": message.partition, "headers": message.headers, "payload": payload}
    if message.topic.endswith(DEAD_LETTER_SUFFIX):
        stored |= {name: getattr(message, name) for name in FAILURE} | {"last_error": message.last_error or ""}
    return stored


def _row(group: GroupStatus) -> tuple[object, ...]:
    made, done, note = group.progress, "", ""
    if made is not None:
        done = f"{made.done}" if made.total is None else f"{made.done} of {made.total}"
        note = f": {made.note}" if made.note else ""
    result = "" if group.result is None else json.dumps(group.result, ensure_ascii=False)
    error = group.error.strip().rpartition("\n")[2]
    due = f"{group.next_attempt_at:%Y-%m-%d %H:%M:%S}" if group.next_attempt_at else ""
    attempts = "?" if group.attempts is None else group.attempts
    copy = "" if group.replayed_as is None else f" as {group.replayed_as[0]}: {group.copy_state}"
    return group.group, group.state + copy, attempts, due, done + note, _cut(result), _cut(error)


def _cut(text: str) -> str:
    return text if len(text) <= MOST_SHOWN else text[: MOST_SHOWN - 1] + "…"
