"""What this process knows of the layouts of topics: the generation that each database had when it was last told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import connections

from sqlqueue.database.aside import aside
from sqlqueue.database.generations import FIRST, OF_SLOT, PRESENT, Known, as_of
from sqlqueue.database.statements import execute

__all__ = ["forget_layouts", "known_layouts", "learn"]

_known: dict[str, Known] = {}


def known_layouts(alias: str) -> Known:
    """Return what this process knows. It may be wrong: a publish statement that was made by it says so."""
    return _known.get(alias, FIRST)


def forget_layouts() -> None:
    """Forget all of it: for databases that were emptied."""
    _known.clear()


def learn(alias: str, at: int, before: Known) -> Known:
    """Return what is true now, as far as the gate's slot tells it, and remember that.

    MySQL: the slot's row stays locked until the transaction ends. What its generation means is read beside the
    transaction, whose snapshot may be older, and without locks: a layout was committed before its generation came into
    force, and never changes.
    """
    generation = _generation(alias, at)
    if generation is None or (generation == before.stored and not before.turning):
        return before
    with aside(alias) as execute_aside:

        def run(text: str, values: Sequence[object]) -> Sequence[Sequence[Any]]:
            return execute_aside(text, values).fetchall()

        found = as_of(generation, run)
    _known[alias] = found
    return found


def _generation(alias: str, at: int) -> int | None:
    vendor = connections[alias].vendor
    text, values = (PRESENT[vendor], ()) if vendor in PRESENT else (OF_SLOT, (at,))
    row = execute(alias, text, values).fetchone()
    return int(row[0]) if row else None
