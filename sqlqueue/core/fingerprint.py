"""Fingerprints of failures: what two errors have in common that have the same cause."""

from __future__ import annotations

import re

LENGTH = 200
FRAME = re.compile(r'^ *File "(?P<file>[^"]+)", line \d+, in (?P<function>.+)$', re.MULTILINE)
RAISED = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?::|$)", re.MULTILINE)
NUMBER = re.compile(r"\d+")


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
