"""Merges hourly statistics that are computed again after some of their source rows were deleted. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Row = Mapping[str, Any]


class Columns(NamedTuple):
    """Which columns tell rows apart; which are counts, that never fall; which are figures that another run may no
    longer be able to compute; which say how far the row has come."""

    unique: Sequence[str]
    counts: Sequence[str]
    figures: Sequence[str] = ()
    progress: Sequence[str] = ()


def merged(columns: Columns, old: Iterable[Row], new: Iterable[Row]) -> tuple[list[dict[str, Any]], int]:
    """Return the old rows, replaced by the new ones as far as these know at least as much, and the new ones that there
    were not; and how many of the new ones knew less.

    A row one of whose counts would fall stays as it is. A figure that is missing now, or, as a row's `partial` says, is
    one of a part only, stays what it was.
    """
    rows = {_key(columns, row): dict(row) for row in old}
    less = 0
    for row in new:
        key = _key(columns, row)
        known = rows.get(key)
        rows[key] = dict(row) if known is None else _later(columns, known, row)
        less += known is not None and any(rows[key][name] != row[name] for name in (*columns.counts, *columns.figures))
    return list(rows.values()), less


def _later(columns: Columns, known: Row, row: Row) -> dict[str, Any]:
    if any(row[count] < known[count] for count in columns.counts):
        return {**known, **{name: max(known[name], row[name]) for name in columns.progress}}
    worse = [name for name in columns.figures if row[name] is None or (row.get("partial") and known[name] is not None)]
    return {**row, **{name: known[name] for name in worse}}


def _key(columns: Columns, row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in columns.unique)
