"""What this process knows of the layouts of topics: the generation that each database had when it was last told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlqueue.database.aside import aside
from sqlqueue.database.generations import FIRST, OF_SLOT, PRESENT, Known, as_of
from sqlqueue.database.log import Log

__all__ = ["forget_layouts", "known_layouts", "learn"]

_known: dict[Log, Known] = {}


def known_layouts(log: Log) -> Known:
    """Return what this process knows. It may be wrong: a publish statement that was made by it says so."""
    return _known.get(log, FIRST)


def forget_layouts() -> None:
    """Forget all of it: for databases that were emptied."""
    _known.clear()


def learn(log: Log, at: int, before: Known) -> Known:
    """Return what is true now, as far as the gate's slot tells it, and remember that.

    MySQL: the slot's row stays locked until the transaction ends. What its generation means is read beside the
    transaction, whose snapshot may be older, and without locks: a layout was committed before its generation came into
    force, and never changes.
    """
    generation = _generation(log, at)
    if generation is None or (generation == before.stored and not before.turning):
        return before
    with aside(log) as execute_aside:

        def run(text: str, values: Sequence[object]) -> Sequence[Sequence[Any]]:
            return execute_aside(text, values).fetchall()

        found = as_of(generation, run)
    _known[log] = found
    return found


def _generation(log: Log, at: int) -> int | None:
    vendor = log.connection.vendor
    text, values = (PRESENT[vendor], ()) if vendor in PRESENT else (OF_SLOT, (at,))
    row = log.execute(text, values).fetchone()
    return int(row[0]) if row else None
