"""Log lines: `event=… name=value …`, that people can read, grep can find and scripts can take apart."""

from __future__ import annotations

import json
from typing import Any

SPECIAL = frozenset(' "=\\')


def line(event: str, **facts: Any) -> str:
    """Return one line, whatever the values are. One with spaces, quotes, equals signs or what cannot be printed in it
    is a JSON string; an error is its class and what it says."""
    return " ".join([f"event={event}", *(f"{name}={_value(value)}" for name, value in facts.items())])


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    try:
        text = repr(value) if isinstance(value, BaseException) else str(value)
    except Exception:  # a user's error or receiver; who logs is often about to do something that must not be left
        text = f"{type(value).__qualname__}, which cannot be described"
    if text and text.isprintable() and SPECIAL.isdisjoint(text):
        return text
    quoted = json.dumps(text, ensure_ascii=False)
    return quoted if quoted.isprintable() else "".join(map(_printable, quoted))


def _printable(character: str) -> str:
    return character if character.isprintable() else json.dumps(character)[1:-1]
