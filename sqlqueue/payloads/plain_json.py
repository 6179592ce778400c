"""JSON without a payload type: written and read by msgspec where that is installed (the extra `fast`), in a fraction of
the time of `json`. Values come back the same: what the two do differently is left to `json`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import isfinite
from typing import Any, NamedTuple

from sqlqueue.core import codec
from sqlqueue.core.codec import LEAST_WHOLE, MOST_WHOLE


class Fast(NamedTuple):
    """What msgspec has."""

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


def encode(value: Any) -> str | None:
    """Return the JSON text of a plain value; None for any other, and without msgspec."""
    found = fast()
    if found is None:
        return None
    try:
        return found.encode(value).decode() if is_plain(value) else None
    except (found.refusal, ValueError, RecursionError):  # half surrogates; too deep
        return None


def decode(stored: Any) -> Any:
    """Return the value of a stored JSON column, whether the driver gives text or has decoded it already."""
    found = fast()
    if found is None or not isinstance(stored, (str, bytes)):
        return codec.decode(stored)
    try:
        return found.decode(stored)
    except (found.refusal, ValueError, RecursionError):  # half surrogates; floats beyond all bounds
        return codec.decode(stored)


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
