"""How many bytes a statement sends to its server, which takes no more than so many at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

Row = TypeVar("Row", bound=Sequence[Any])

LIGHT = 64 * 1024  # any server takes a statement of so many bytes
STATEMENT = 1024 * 1024  # of many rows: longer ones save nothing
OVERHEAD = 4096  # of a statement's own text
VALUE = 32  # a number, a time, a mark; what stands between two values
ESCAPED_BYTES = b"\0\n\r\x1a\"'\\"  # MySQL's client sends two bytes for each
LONG = 16 * 1024  # characters of a text that are worth counting


def weight(values: Sequence[Any]) -> int:
    """Return how many bytes a row's values take in a statement at most; of long texts and of bytes just so many."""
    total = 0
    for value in values:
        if isinstance(value, str):
            total += weight_of_text(value)
        else:
            total += _weight_of_bytes(value) if isinstance(value, bytes) else VALUE
    return total


def _weight_of_bytes(value: bytes) -> int:
    return 2 * len(value) - len(value.translate(None, ESCAPED_BYTES)) + VALUE


def weight_of_text(text: str) -> int:
    """Return how many bytes a text takes at most, of a long one just so many."""
    if len(text) < LONG:
        return 2 * (len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))) + VALUE
    sent = text.encode("utf-8", "surrogatepass")
    return 2 * len(sent) - len(sent.translate(None, ESCAPED_BYTES)) + VALUE


def chunks(
    rows: Sequence[Row], most_rows: int, most_bytes: Callable[[], int], weigh: Callable[[Row], float] = weight
) -> Iterator[Sequence[Row]]:
    """Split rows into those of one statement each. A row that is heavier than one statement is alone; `most_bytes` is
    asked only where it matters."""
    weights = list(map(weigh, rows))
    most = most_bytes() if sum(weights) > LIGHT else LIGHT
    start, total = 0, 0.0
    for end, heavy in enumerate(weights):
        if end > start and (end - start >= most_rows or total + heavy > most):
            yield rows[start:end]
            start, total = end, 0.0
        total += heavy
    if rows:
        yield rows[start:]


def as_they_come(
    rows: Iterable[Row], most_rows: int, most_bytes: int, weigh: Callable[[Row], float]
) -> Iterator[Sequence[Row]]:
    """Yield rows as they come, some at a time: at most so many, and no more once they weigh so much."""
    some: list[Row] = []
    total = 0.0
    for row in rows:
        some.append(row)
        total += weigh(row)
        if len(some) >= most_rows or total >= most_bytes:
            yield some
            some, total = [], 0.0
    if some:
        yield some
