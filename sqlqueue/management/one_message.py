"""One message, for commands: it is named by its id and key, or by its offset."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError

from sqlqueue.database.log import all_logs, current_log
from sqlqueue.models import Message
from sqlqueue.stats.message_status import MessageStatus, get_status, status_of
from sqlqueue.stats.search import MOST_KEYS, keys_of


def wrong_options(options: dict[str, Any]) -> str:
    """Return what is wrong with --topic, --id, --key and --offset together; "" for nothing."""
    if options["id"] is None and options["key"] is not None:
        return "--key goes with --id: they name a message together"
    if options["id"] is not None and options["offset"] is not None:
        return "--id or --offset: each of them names a message"
    named = "--id" if options["id"] is not None else "--offset" if options["offset"] is not None else ""
    if named and (len(options["topic"]) != 1 or options["group"]):
        return f"{named} needs one --topic, and no --group"
    return ""


def by_id(topic: str, id: str, key: str | None) -> MessageStatus:
    """Return the status of a message; without a key that of the one with none, or of the only one with any. Raises
    CommandError."""
    status = get_status(topic, id=id, key=key or "")
    if status is not None:
        return status
    if key:
        raise CommandError(_unknown(topic, f"the id {id!r} and key {key!r}"))
    keys = sorted({found for log in all_logs() for found in keys_of(log, topic, id)})
    if not keys:
        raise CommandError(_unknown(topic, f"the id {id!r}, whatever its key"))
    if len(keys) > 1:
        more = ", …" if len(keys) >= MOST_KEYS else ""
        names = ", ".join(map(repr, keys[:MOST_KEYS])) + more
        text = f"topic {topic!r} has messages with the id {id!r} of several keys ({names}): name one by --key"
        raise CommandError(text)
    return by_id(topic, id, keys[0])


def by_offset(topic: str, offset: int) -> tuple[MessageStatus, str]:
    """Return the status of a message in the log, and the error that it has as a dead letter. Raises CommandError."""
    message = Message.objects.using(current_log().alias).filter(offset=offset).without_content().first()
    if message is None or message.topic != topic:
        where = "the log has none at it" if message is None else f"it is one of topic {message.topic!r}"
        raise CommandError(f"topic {topic!r} has no message at offset {offset}: {where}")
    return status_of(current_log(), message), message.last_error or ""


def _unknown(topic: str, named: str) -> str:
    return (
        f"topic {topic!r} has no message with {named}: it was never published, or it was collected or cancelled and no "
        "result of it is kept"
    )
