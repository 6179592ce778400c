"""Payloads and headers as publishers give them: written by the encoder that SQLQUEUE["JSON_ENCODER"] names, and refused
if they would not come back equal."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from django.utils.module_loading import import_string

from sqlqueue.conf import settings
from sqlqueue.core import codec
from sqlqueue.core.codec import JSON_OPTIONS, check_exact, checked_json
from sqlqueue.core.settings import PLAIN_ENCODER
from sqlqueue.database.limits import keeps_long_numbers
from sqlqueue.database.log import home_log
from sqlqueue.exceptions import ConfigurationError, InvalidMessage, PayloadMismatch
from sqlqueue.payloads.versions import checked_content_type

if TYPE_CHECKING:
    from sqlqueue.payloads.payload_type import PayloadType

HINT = (
    "Turn it into dicts, lists, strings and numbers, or name an encoder that does in SQLQUEUE['JSON_ENCODER']"
    " (django.core.serializers.json.DjangoJSONEncoder: dates, decimals, UUIDs)"
)
INSTANCES = "; instances need the topic's 'payload_type' in SQLQUEUE['TOPICS']"
NOTHING = "null"  # the JSON text beside a payload of bytes
# What only a custom encoder writes, and JSON does not have: half surrogates, NaN, Infinity.
SUSPICIOUS = ("\\u", "NaN", "Infinity")


def encode(value: Any, kind: str = "payload") -> str:
    """Return the JSON text of a value; refuse what JSON cannot say, and what would not come back equal: tuples, keys
    that are not strings, on MySQL whole numbers beyond 64 bits. What only the encoder makes JSON of comes back as that.

    Raises InvalidMessage, and ConfigurationError if the encoder cannot be had.
    """
    path = settings.JSON_ENCODER
    if path == PLAIN_ENCODER and (plain := codec.encode_plain(value)) is not None:
        return plain
    text = codec.encode(value, kind, writer(path), HINT + INSTANCES if kind == "payload" else HINT)
    check_exact(value, kind, _keeps_long)
    if path != PLAIN_ENCODER and any(sign in text for sign in SUSPICIOUS):
        checked_json(text, kind)
    return text


def encode_payload(topic: str, kind: PayloadType | None, value: Any) -> str:
    """Return the JSON text of a payload; that of a topic with a payload type may be an instance, or hold some, and has
    to come back as one. Raises InvalidMessage, naming the field, if it does not."""
    if kind is None:
        return encode(value)
    try:
        text = codec.encode(kind.plain(value, encode), "payload")
        kind.decode(text)
    except PayloadMismatch as error:
        raise InvalidMessage(f"topic {topic!r}: {error}") from error
    check_exact(codec.decode(text), "payload", _keeps_long)
    return text


def body_of(topic: str, kind: PayloadType | None, payload: Any, content_type: Any) -> bytes | None:
    """Return a payload of bytes; None for one that is to be JSON.

    Raises InvalidMessage if the topic's payload type is for the other, and for a content type of JSON, or that is none.
    """
    if not isinstance(payload, (bytes, bytearray, memoryview)):
        if content_type is not None:
            raise InvalidMessage("content_type is for a payload of bytes, and this one is JSON: leave it out")
        if kind is not None and kind.of_bytes:
            raise InvalidMessage(f"topic {topic!r}: payload must be bytes, not {type(payload).__name__}")
        return None
    if kind is not None and not kind.of_bytes:
        raise InvalidMessage(f"topic {topic!r}: payload does not fit {kind.name}: it is bytes")
    if content_type is not None:
        checked_content_type(content_type)
    return bytes(payload)


def _keeps_long() -> bool:
    return keeps_long_numbers(home_log())


@lru_cache
def writer(path: str) -> Callable[[Any], str]:
    """Return what writes JSON by the encoder of this dotted path. Raises ConfigurationError if it cannot be had."""
    try:
        made = import_string(path)
    except Exception as error:  # of the module that it stands in
        raise ConfigurationError(f"JSON_ENCODER: {path!r} cannot be imported: {error!r}") from error
    if not (isinstance(made, type) and issubclass(made, json.JSONEncoder)):
        raise ConfigurationError(f"JSON_ENCODER must name a subclass of json.JSONEncoder, and {path!r} is {made!r}")
    try:
        write = made(**JSON_OPTIONS).encode
        text = write({})
    except Exception as error:
        taken = ", ".join(JSON_OPTIONS)
        raise ConfigurationError(
            f"JSON_ENCODER: {path!r} cannot be used: {error!r}. It has to take json.JSONEncoder's arguments ({taken})."
        ) from error
    if not isinstance(text, str):
        raise ConfigurationError(f"JSON_ENCODER: {path!r} writes {type(text).__name__}, not str")
    return write
