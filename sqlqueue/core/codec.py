"""Payloads and headers as JSON text. What is plain is written and read by msgspec where that is installed (the extra
`fast`): values come back the same, and what it does differently is left to `json`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from math import isfinite
from typing import Any, NamedTuple

from sqlqueue.exceptions import InvalidMessage

DEEPEST = 500  # Python's own reader ends at some 1,000, less what is on its stack already
BETWEEN_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[^][{}"]+', re.DOTALL)

LEAST_WHOLE, MOST_WHOLE = -(2**63), 2**64 - 1  # MySQL makes doubles of what lies beyond
# What refers to itself ends at the depth of nesting. To look out for that would cost half as much as is_plain().
JSON_OPTIONS: Mapping[str, Any] = {
    "ensure_ascii": False,
    "allow_nan": False,
    "separators": (",", ":"),
    "check_circular": False,
}

_encode = json.JSONEncoder(**JSON_OPTIONS).encode
MOST_INDENTED = 1_000_000  # characters of JSON that is shown indented


def encode(
    value: Any,
    kind: str = "payload",
    write: Callable[[Any], str] = _encode,
    hint: str = "Turn it into dicts, lists, strings and numbers",
) -> str:
    """Return the JSON text of a value; refuse what JSON cannot say (NaN, dates, half surrogates)."""
    try:
        text = write(value)
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage(f"{kind} has text that is not valid Unicode: {error.reason}") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidMessage(f"{kind} is not JSON: {error}. {hint}.") from None
    return text


def is_plain(value: Any) -> bool:
    """Tell whether a value consists of just the types that JSON has (dict, list, str, int, float, bool, None: no
    subclass), and comes back equal from every database: all keys are str, whole numbers have up to 64 bits, and
    numbers are finite."""
    kind = type(value)
    if kind is dict:
        for key in value:
            if type(key) is not str:
                return False
        value = value.values()
    elif kind is not list:
        value = (value,)
    for item in value:
        kind = type(item)
        if kind is str or kind is bool or item is None:
            continue
        if kind is int:
            if not LEAST_WHOLE <= item <= MOST_WHOLE:
                return False
        elif kind is float:
            if not isfinite(item):
                return False
        elif (kind is not dict and kind is not list) or not is_plain(item):
            return False
    return True


def check_exact(value: Any, kind: str, keeps_long: Callable[[], bool]) -> None:
    """Raise InvalidMessage for a value that could be encoded and would not come back equal. keeps_long: tell whether
    the database keeps whole numbers of more than 64 bits; asked only if there are any."""
    try:
        change = "" if is_plain(value) else _first_change(value, keeps_long)
    except RecursionError:
        raise InvalidMessage(f"{kind} is nested too deep: flatten it") from None
    if change:
        raise InvalidMessage(f"{kind}{change}")


def _first_change(value: Any, keeps_long: Callable[[], bool]) -> str:
    """Say where in a value the first thing stands that comes back changed, what it is, and what to write instead; "" if
    nothing does. Subclasses of JSON's own types (an IntEnum, a defaultdict) equal what comes back. What else there is
    an encoder has made JSON of, and is not looked at."""
    if isinstance(value, tuple):
        return " would come back as a list, for JSON knows no tuples: use list(…)"
    if isinstance(value, int) and not LEAST_WHOLE <= value <= MOST_WHOLE and not keeps_long():
        return " would come back as a float, for MySQL's whole numbers have 64 bits: use str(…)"
    if not isinstance(value, (dict, list)):
        return ""
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(value, dict) and not isinstance(key, str):
            return f" has the key {key!r}, which would come back as a string: use str(…)"
        if change := _first_change(item, keeps_long):
            return f"[{key!r}]{change}"
    return ""


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


def encode_headers(headers: object, write: Callable[[Any, str], str] = encode) -> str | None:
    """Return the JSON text of headers, a mapping of strings to JSON values; None for none."""
    if headers is None or headers == {}:
        return None
    # What is in them is not told: the text may end in a log, and headers may carry secrets.
    if not isinstance(headers, dict):
        raise InvalidMessage(f"headers must be a dict with string keys, not {type(headers).__name__}")
    if wrong := [name for name in headers if not isinstance(name, str)]:
        raise InvalidMessage(f"headers must be a dict with string keys, and {wrong[0]!r} is none")
    return write(headers, "headers")


def as_text(stored: Any) -> str | None:
    """Return a stored JSON column as JSON text again; None for none."""
    return stored if stored is None or isinstance(stored, str) else encode(stored)


class Fast(NamedTuple):
    """What msgspec has: it needs a fraction of the time of `json`."""

    encode: Callable[[Any], bytes]
    decode: Callable[[Any], Any]
    refusal: type[Exception]


@cache
def fast() -> Fast | None:
    """Return msgspec's encoder and decoder; None if it is not installed."""
    try:
        import msgspec
    except ImportError:
        return None
    return Fast(msgspec.json.Encoder().encode, msgspec.json.Decoder().decode, msgspec.MsgspecError)


def encode_plain(value: Any) -> str | None:
    """Return the JSON text of a plain value, by msgspec; None for any other, and where that is not installed."""
    found = fast()
    if found is None:
        return None
    try:
        return found.encode(value).decode() if is_plain(value) else None
    except (found.refusal, ValueError, RecursionError):  # half surrogates; too deep
        return None


def decode(stored: Any) -> Any:
    """Return the value of a stored JSON column, whether the driver gives text or has decoded it already."""
    if not isinstance(stored, (str, bytes)):
        return stored
    if (found := fast()) is not None:
        # What the two read differently is left to `json`: half surrogates, floats beyond all bounds.
        with suppress(found.refusal, ValueError, RecursionError):
            return found.decode(stored)
    return json.loads(stored)


def indented(value: Any, most: int = MOST_INDENTED, default: Callable[[Any], Any] | None = None) -> tuple[str, bool]:
    """Return a value as indented JSON, and whether that is all of it. No more than about `most` characters are built:
    indentation makes a small payload that is deeply nested hundreds of times as long. default: as of `json.dumps`."""
    text = ""
    for part in json.JSONEncoder(indent=2, ensure_ascii=False, default=default).iterencode(value):
        text += part
        if len(text) > most:
            return text, False
    return text, True


def indented_or_compact(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    """Return a value as JSON, all of it: indented unless that makes a text of more than MOST_INDENTED characters."""
    text, whole = indented(value, MOST_INDENTED, default)
    return text if whole else json.dumps(value, ensure_ascii=False, default=default)
