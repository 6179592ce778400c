"""JSON for people: indented, as long as that does not make it much longer."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

MOST_INDENTED = 1_000_000  # characters of JSON that is shown indented


def indented(value: Any, most: int = MOST_INDENTED, default: Callable[[Any], Any] | None = None) -> tuple[str, bool]:
    """Return a value as indented JSON, and whether that is all of it. No more than about `most` characters are built:
    indentation makes a small payload that is deeply nested hundreds of times as long. default: as of `json.dumps`."""
    parts: list[str] = []
    length = 0
    for part in json.JSONEncoder(indent=2, ensure_ascii=False, default=default).iterencode(value):
        parts.append(part)
        length += len(part)
        if length > most:
            return "".join(parts), False
    return "".join(parts), True


def indented_or_compact(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    """Return a value as JSON, all of it: indented unless that makes a text of more than MOST_INDENTED characters."""
    text, whole = indented(value, MOST_INDENTED, default)
    return text if whole else json.dumps(value, ensure_ascii=False, default=default)
