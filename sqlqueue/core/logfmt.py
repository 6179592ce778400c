"""Log lines: `event=… name=value …`, for people, grep and scripts."""

from __future__ import annotations

import json
import logging
from typing import Any

SPECIAL = frozenset(' "=\\')


def logfmt(event: str, **fields: Any) -> str:
    """Return one line, whatever the values are. One with spaces, quotes, equals signs or what cannot be printed in it
    is a JSON string; an error is its class and message."""
    return " ".join([f"event={event}", *(f"{name}={_value(value)}" for name, value in fields.items())])


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    try:
        text = repr(value) if isinstance(value, BaseException) else str(value)
    except Exception:  # a user's error or receiver; the code that logs often has work that must go on
        text = f"{type(value).__qualname__}, which cannot be described"
    if text and text.isprintable() and SPECIAL.isdisjoint(text):
        return text
    quoted = json.dumps(text, ensure_ascii=False)
    return printable(quoted)


def printable(text: str, keep: str = "") -> str:
    """Return a text in which everything that a terminal could obey or hide is escaped as in JSON: control characters
    (C0, DEL, C1), those that turn the direction, half surrogates. `keep`: but these."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in keep else json.dumps(one)[1:-1] for one in text)


def lines_below(text: str) -> str:
    """Return a traceback as lines that stand below a log line: escaped, and indented, so that none of them is taken for
    a log line, whatever an error's message holds."""
    return "\n".join("  " + printable(line) for line in text.rstrip().split("\n"))


class EscapedTracebacks(logging.Filter):
    """Lets every formatter write the traceback of a record's error as `lines_below`; the error itself stays in it."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True: every record passes."""
        if record.exc_info and not record.exc_text:
            record.exc_text = lines_below(logging.Formatter().formatException(record.exc_info))
        return True


logging.getLogger("sqlqueue").addFilter(EscapedTracebacks())
