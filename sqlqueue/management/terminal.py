"""Tables and progress on a terminal, as plain text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows under their columns' names; columns of numbers are aligned to the right."""
    numeric = [_are_numbers([row[index] for row in rows]) for index in range(len(columns))]
    widths = [max(len(name), *(len(row[index]) for row in rows), 0) for index, name in enumerate(columns)]
    lines = [
        "  ".join(
            cell.rjust(width) if is_numeric else cell.ljust(width)
            for cell, width, is_numeric in zip(row, widths, numeric)
        ).rstrip()
        for row in (columns, *rows)
    ]
    return "\n".join(lines)


def _are_numbers(cells: Sequence[str]) -> bool:
    return bool(cells) and all(cell in ("", "—") or cell.lstrip("≈≥ +-")[:1].isdigit() for cell in cells)


class Progress:
    """How far something is, in one line that is overwritten while its block runs; silent unless `out` is a terminal."""

    def __init__(self, what: str, total: int | None, out: Any):
        self.what, self.total, self.done = what, total, 0
        self._out = out if out.isatty() else None

    def __enter__(self) -> Progress:
        return self

    def reach(self, done: int) -> None:
        """Show that `done` of the total are done."""
        self.done = done
        if self._out is not None:
            of = "" if self.total is None else f" of {self.total}"
            self._out.write(f"\r{self.what}: {done}{of}", ending="")
            self._out.flush()

    def __exit__(self, *_: object) -> None:
        if self._out is not None and self.done:
            self._out.write("")
