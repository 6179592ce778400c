"""Payloads and headers as JSON text."""

from __future__ import annotations

import json
import re
from typing import Any

from sqlqueue.exceptions import InvalidMessage

DEEPEST = 500  # Python's own reader ends at some 1,000, less what is on its stack already
BETWEEN_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[^][{}"]+', re.DOTALL)

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def encode(value: Any, kind: str = "payload") -> str:
    """Return the JSON text of a value; refuse what JSON cannot say (NaN, dates, half surrogates)."""
    try:
        text = _encode(value)
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage(f"{kind} has text that is not valid Unicode: {error.reason}") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidMessage(f"{kind} is not JSON: {error}. Turn it into dicts, lists, strings and numbers.") from None
    return text


def checked_json(text: str, kind: str = "payload") -> str:
    """Return a JSON text as it is; refuse what is none, or says what encode() refuses."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise InvalidMessage(f"{kind} is not JSON text: {error}") from None
    if "\\u" in text:  # half surrogates hide there
        encode(value, kind)
    return text


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")


def check_depth(text: str, kind: str, most: int) -> None:
    """Raise InvalidMessage for a JSON text whose arrays and objects are nested more than `most` deep."""
    if text.count("[") + text.count("{") <= most:
        return
    brackets = BETWEEN_BRACKETS.sub("", text).replace("{", "[").replace("}", "]")
    for _ in range(most):
        brackets = brackets.replace("[]", "")  # the innermost of each place
    if brackets:
        raise InvalidMessage(f"{kind} is nested more than {most} deep, which this database cannot keep: flatten it")


def encode_headers(headers: object) -> str | None:
    """Return the JSON text of headers, a mapping of strings to JSON values; None for none."""
    if headers is None or headers == {}:
        return None
    # What is in them is not told: the text may end in a log, and headers may carry secrets.
    if not isinstance(headers, dict):
        raise InvalidMessage(f"headers must be a dict with string keys, not {type(headers).__name__}")
    if wrong := [name for name in headers if not isinstance(name, str)]:
        raise InvalidMessage(f"headers must be a dict with string keys, and {wrong[0]!r} is none")
    return encode(headers, "headers")


def decode(stored: Any) -> Any:
    """Return the value of a stored JSON column, whether the driver gives text or has decoded it already."""
    return json.loads(stored) if isinstance(stored, (str, bytes)) else stored


def as_text(stored: Any) -> str | None:
    """Return a stored JSON column as JSON text again; None for none."""
    return stored if stored is None or isinstance(stored, str) else encode(stored)
