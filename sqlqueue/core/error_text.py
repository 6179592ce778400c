"""Errors as text, and their fingerprints: what two errors have in common that have the same cause."""

from __future__ import annotations

import re
import traceback

LENGTH = 200
FRAME = re.compile(r'^ *File "(?P<file>[^"]+)", line \d+, in (?P<function>.+)$', re.MULTILINE)
RAISED = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?::|$)", re.MULTILINE)
NUMBER = re.compile(r"\d+")


def text_of(error: BaseException) -> str:
    """Return an error with its traceback, and with those of its causes, as text.

    `traceback.format_exception` asks the file system whether the source of each frame has changed. A handler fails
    often at the same lines, so this happens for errors with causes and for groups only.
    """
    chained = error.__cause__ is not None or (error.__context__ is not None and not error.__suppress_context__)
    if chained or error.__traceback__ is None or hasattr(error, "exceptions"):
        return "".join(traceback.format_exception(error))
    frames = [
        traceback.FrameSummary(frame.f_code.co_filename, line, frame.f_code.co_name, lookup_line=False)
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames)]
    return "".join([*lines, *traceback.format_exception_only(error)])


def fingerprint(error: str) -> str:
    """Return the class and the location of the last frame of a traceback: "KeyError in flights/rules.py:check".

    Without line numbers, which change with every release. A text that is no traceback (a Reject's reason) stands for
    itself, first line only, its numbers as "#". At most 200 characters; "" for "".
    """
    frames = list(FRAME.finditer(error))
    if frames and (raised := RAISED.search(error, frames[-1].end() + 1)):
        location = "/".join(frames[-1]["file"].replace("\\", "/").split("/")[-2:])
        return f"{raised['type']} in {location}:{frames[-1]['function']}"[:LENGTH]
    lines = error.strip().splitlines()
    return NUMBER.sub("#", lines[0])[:LENGTH] if lines else ""
