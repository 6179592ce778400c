"""Messages as the lines of a file that `queuetail --json` prints and `queuepublish --messages` reads."""

from __future__ import annotations

import base64
import binascii
from argparse import ArgumentTypeError
from datetime import datetime
from typing import Any

from sqlqueue.core.keys import did_you_mean
from sqlqueue.core.new_message import NewMessage
from sqlqueue.exceptions import InvalidMessage
from sqlqueue.management import arguments
from sqlqueue.models import Message
from sqlqueue.payloads.topic_types import version_of
from sqlqueue.payloads.versions import CONTENT_TYPE, VERSION, content_type_of

# "body" is a payload of bytes in base64, of this "content_type".
PARTS = (
    "payload",
    "body",
    "content_type",
    "key",
    "id",
    "headers",
    "priority",
    "delay",
    "at",
    "on_conflict",
    "expires",
    "group",
    "unique_for",
)
# What is told besides, and the copy has of its own.
IGNORED = ("offset", "topic", "partition", "created_at", "expires_at", "target_group")


def told(message: Message) -> dict[str, Any]:
    """Return a message of the log as the object of a line."""
    values = {
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
    if message.body is not None:
        values["body"] = base64.b64encode(message.body).decode()
        if CONTENT_TYPE in (message.headers or {}):
            values["content_type"] = content_type_of(message.headers)
    if message.expires_at is not None:
        values["expires_at"] = message.expires_at.isoformat()
    return values


def read(number: int, given: Any, topic: str) -> NewMessage:
    """Return the message that a line tells of, to publish to a topic. number: of the line. Raises InvalidMessage."""
    if not isinstance(given, dict) or not ("payload" in given or given.get("body") is not None):
        raise InvalidMessage(f'line {number} is not an object with a "payload"')
    unknown = [part for part in given if part not in PARTS + IGNORED]
    if unknown:
        raise InvalidMessage(f"line {number}: no member {unknown[0]!r}.{did_you_mean(unknown[0], PARTS)}")
    parts = {part: given[part] for part in PARTS[2:] if given.get(part) is not None}
    if "at" in parts:
        parts["at"] = _moment(number, parts["at"])
    payload = given.get("payload")
    if given.get("body") is not None:
        if payload is not None:
            raise InvalidMessage(f'line {number} has a "payload" and a "body": leave one of them out')
        payload = _decoded(number, given["body"])
    return NewMessage(payload, **_without_own(topic, parts))


def _moment(number: int, value: Any) -> datetime:
    try:
        return arguments.moment(value if isinstance(value, str) else repr(value))
    except ArgumentTypeError as error:
        raise InvalidMessage(f"line {number}: at: {error}") from None


def _decoded(number: int, text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise InvalidMessage(f'line {number}: "body" is not base64: {error}') from None


def _without_own(topic: str, parts: dict[str, Any]) -> dict[str, Any]:
    """What is told has the headers that publish writes again; a version that is another one stays, and is refused."""
    headers = parts.get("headers")
    if not isinstance(headers, dict):
        return parts
    own = {VERSION: version_of(topic), CONTENT_TYPE: parts.get("content_type")}
    kept = {name: value for name, value in headers.items() if name not in own or value != own[name]}
    return {**parts, "headers": kept}
