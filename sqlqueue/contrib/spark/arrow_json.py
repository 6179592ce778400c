"""Arrow's values as JSON."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql.types import VariantVal

from sqlqueue.core.codec import checked_json, encode, encode_headers
from sqlqueue.exceptions import InvalidMessage
from sqlqueue.payloads.versions import OF_PAYLOAD, OWN, refuse_reserved


def payload_of(kind: Any) -> Callable[[Any], str]:
    """Return a function that makes JSON text of a payload column's values: strings are JSON text already."""
    if _is_text(kind):
        return lambda value: "null" if value is None else checked_json(value)
    return lambda value: encode(plain(value, kind))


def headers_of(kind: Any) -> Callable[[Any], str | None]:
    """Return a function that makes JSON text of a headers column's values: JSON text of an object, structs or maps.

    It raises InvalidMessage for names that are the queue's, as publish() does; a text may be that of a message that was
    read, and keeps what the queue said of its payload, but neither its batch nor the wish for a reply.
    """
    return _headers_text if _is_text(kind) else lambda value: _callers_headers(plain(value, kind))


def _callers_headers(headers: Any) -> str | None:
    if isinstance(headers, dict):
        refuse_reserved(headers)
    return encode_headers(headers)


def _headers_text(value: str | None) -> str | None:
    if value is None:
        return None
    try:
        headers = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise InvalidMessage(f"headers are not JSON text: {error}") from None
    if isinstance(headers, dict):
        for name in OWN - OF_PAYLOAD:  # its batch has counted it, or is gone, and its caller has got the reply
            headers.pop(name, None)
        refuse_reserved(headers.keys() - OF_PAYLOAD)
    return encode_headers(headers)


def json_texts(values: pa.Array) -> pa.Array:
    """Return the JSON text of each value, NULL for NULL."""
    kind = values.type
    texts = (None if value is None else encode(plain(value, kind)) for value in values.to_pylist())
    return pa.array(list(texts), pa.string())


def _is_text(kind: Any) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def plain(value: Any, kind: Any) -> Any:
    """Return a value as dicts, lists, strings and numbers.

    Times are UTC in ISO 8601, with microseconds if there are any; decimals are strings, since many readers take a JSON
    number for a float; binary is base64; an interval is its seconds; a VARIANT is what it holds. Raises InvalidMessage
    for another type, and for an interval of which a float would lose microseconds.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return _shortest(value) if pa.types.is_float32(kind) else value
    if _is_variant(kind):
        return _untyped(VariantVal(value["value"], value["metadata"]).toPython())
    if pa.types.is_struct(kind):
        return {field.name: plain(value[field.name], field.type) for field in kind}
    if pa.types.is_map(kind):
        return {_name(key): plain(item, kind.item_type) for key, item in value}
    if isinstance(value, list):
        return [plain(item, kind.value_type) for item in value]
    return _scalar(value)


def _untyped(value: Any) -> Any:
    """Return what a VARIANT holds as plain() returns other values, but its decimals as numbers, as JSON has them.
    Raises InvalidMessage for one of which a float would lose digits."""
    if isinstance(value, dict):
        return {_name(key): _untyped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_untyped(item) for item in value]
    if isinstance(value, Decimal):
        number = int(value) if value.as_tuple().exponent == 0 else float(value)
        if Decimal(repr(number)) != value:
            raise InvalidMessage(f"a VARIANT holds {value}, of which a float would lose digits: make it a string")
        return number
    return value if value is None or isinstance(value, (bool, int, float, str)) else _scalar(value)


def _scalar(value: Any) -> Any:
    if isinstance(value, datetime):
        at = value.astimezone(timezone.utc) if value.tzinfo else value
        return at.isoformat().replace("+00:00", "Z")
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, timedelta):
        if timedelta(seconds=value.total_seconds()) != value:
            raise InvalidMessage(
                f"a payload cannot hold the interval {value}, which is longer than a float keeps exactly"
            )
        return value.total_seconds()
    raise InvalidMessage(f"a payload cannot hold a {type(value).__name__}: turn it into JSON text with to_json()")


def _is_variant(kind: Any) -> bool:
    return pa.types.is_struct(kind) and any((field.metadata or {}).get(b"variant") == b"true" for field in kind)


def _shortest(value: float) -> float:
    """Return the shortest decimal number that a float of 32 bits stands for, 0.1 for 0.10000000149011612."""
    texts = (f"{value:.{digits}g}" for digits in range(6, 10))
    return next((float(text) for text in texts if _bits(float(text)) == _bits(value)), value)


def _bits(value: float) -> bytes:
    return struct.pack("f", value)


def _name(key: Any) -> str:
    if not isinstance(key, str):
        raise InvalidMessage(f"the keys of a map must be strings to become JSON, not {type(key).__name__}")
    return key
