"""What the processes of a run write down: one file each, a line at a time, in the order in which it happened.

A line is a JSON list: a kind, the moment, and the facts of that kind. Moments are seconds of the monotonic clock, which
all processes of a machine share, and which no shift of a process's clock touches. A line, or several of
one moment, are one write to the file, so that a process that is killed has either written them or not; but for a long
write, of which SIGKILL may leave the beginning.
"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
FOLDER = "SOAK_HISTORY"  # the environment's variable that names the folder


class Line(NamedTuple):
    """What happened, when, and which process wrote it (the number of its file: process ids come again)."""

    kind: str
    at: float
    facts: list[Any]
    writer: int


class Journal:
    """One process's file."""

    def __init__(self, folder: Path, role: str) -> None:
        self._file = os.open(folder / f"{role}-{os.getpid()}-{time.monotonic_ns()}.jsonl", FLAGS)
        self.note("process", os.getpid(), role)

    def note(self, kind: str, *facts: Any) -> None:
        """Write one line."""
        self.note_all(kind, [facts])

    def note_all(self, kind: str, several: list[tuple[Any, ...]]) -> None:
        """Write several lines of one moment."""
        now = time.monotonic()
        text = "".join(json.dumps([kind, now, *facts], separators=(",", ":")) + "\n" for facts in several)
        os.write(self._file, text.encode())


def read(folder: Path) -> Iterator[Line]:
    """Yield the lines of all files, those of a process in their order; a reader that needs the others' sorts them.

    A write of many lines that SIGKILL interrupts may end within a line. That one is left out: what it tells of was
    never done. Anything else that is no line raises ValueError.
    """
    for writer, file in enumerate(sorted(folder.glob("*.jsonl"))):
        with file.open(encoding="utf-8") as lines:
            for number, text in enumerate(lines, start=1):
                if not text.endswith("\n"):
                    break
                try:
                    kind, at, *facts = json.loads(text)
                except ValueError as error:
                    raise ValueError(f"{file.name}, line {number}: {text[:100]!r}") from error
                yield Line(kind, at, facts, writer)
