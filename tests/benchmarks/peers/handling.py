"""What every peer's worker does with a message, and how it is noted.

A note is 24 bytes, appended to the file that PEERS_NOTES names: the message's number, when it was sent and when it was
handled, in nanoseconds of the machine's monotonic clock.
"""

import functools
import os
import struct
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

FILLER = "x" * 285
SLEEP = 0.005  # seconds
NOTE = struct.Struct("<qqq")


class Note(NamedTuple):
    number: int
    sent: int
    handled: int


def handle(kind: str, number: int, sent: int, filler: str) -> None:
    """Do what this kind of message asks for, and note it."""
    if kind.startswith("sleep"):
        time.sleep(SLEEP)
    elif kind.startswith("write"):
        from tests.benchmarks.peers.models import Written

        Written.objects.create(number=number, text=filler[:40])
    note([(number, sent)])


def note(messages: Iterable[tuple[int, int]]) -> None:
    """Note (number, sent) of messages that have just been handled, in one write."""
    now = time.monotonic_ns()
    os.write(_file(os.getpid()), b"".join(NOTE.pack(number, sent, now) for number, sent in messages))


def message(kind: str, number: int) -> list[str | int]:
    """Return what is sent: the arguments of handle()."""
    return [kind, number, time.monotonic_ns(), FILLER]


def read_notes(path: Path, start: int = 0) -> list[Note]:
    """Return the notes behind the first `start` ones."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(start * NOTE.size)
        content = file.read()
    return [Note(*one) for one in NOTE.iter_unpack(content[: len(content) // NOTE.size * NOTE.size])]


def count_notes(path: Path) -> int:
    return path.stat().st_size // NOTE.size if path.exists() else 0


@functools.cache
def _file(pid: int) -> int:
    return os.open(os.environ["PEERS_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
