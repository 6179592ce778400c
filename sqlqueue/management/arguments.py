"""Numbers on the command line, refused where they are read if nobody can mean them."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable

from sqlqueue.conf import MOST_PARTITIONS

HIGHEST_OFFSET = 2**63 - 1  # what the columns hold
MOST_PROCESSES = 1_000


def whole(least: int, most: int) -> Callable[[str], int]:
    """Return what reads a whole number between the two."""

    def read(text: str) -> int:
        try:
            number = int(text) if len(text) <= len(str(HIGHEST_OFFSET)) else most + 1
        except ValueError:
            number = most + 1
        if not least <= number <= most:
            raise ArgumentTypeError(f"{text[:40]!r} is no whole number from {least} to {most}")
        return number

    return read


def decimal(least: float, most: float) -> Callable[[str], float]:
    """Return what reads a number between the two."""

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = float("nan")
        if not least <= number <= most:
            raise ArgumentTypeError(f"{text[:40]!r} is no number from {least:g} to {most:,.0f}")
        return number

    return read


offset = whole(0, HIGHEST_OFFSET)
partition = whole(0, MOST_PARTITIONS - 1)
