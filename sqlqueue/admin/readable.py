"""Data of publishers and handlers as pages show it: JSON indented up to what is shown, and nothing that a browser would
obey or hide."""

from __future__ import annotations

import json
from typing import Any

from sqlqueue.core.logfmt import printable

MOST_INDENTED = 1_000_000  # characters of JSON that a form shows indented


def harmless(text: str) -> str:
    """Return a text whose control characters, and those that turn the direction of writing, are escaped as in JSON;
    lines and tabs stay."""
    return printable(text, keep="\n\t")


def indented(value: Any, most: int, cut: str = "…") -> str:
    """Return a value as indented JSON, harmless, to be read. After `most` characters there is `cut` on a line of its
    own."""
    text, whole = _built(value, most)
    return harmless(text) if whole else harmless(text[:most]) + f"\n{cut}"


def editable(value: Any) -> str:
    """Return a value as JSON, indented unless that makes a text of more than MOST_INDENTED characters."""
    text, whole = _built(value, MOST_INDENTED)
    return text if whole else json.dumps(value, ensure_ascii=False)


def _built(value: Any, most: int) -> tuple[str, bool]:
    """Return a value as indented JSON, and whether that is all of it. No more than about `most` characters are built:
    indentation makes a small payload that is deeply nested hundreds of times as long."""
    parts: list[str] = []
    length = 0
    for part in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(value):
        parts.append(part)
        length += len(part)
        if length > most:
            return "".join(parts), False
    return "".join(parts), True
