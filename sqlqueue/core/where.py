"""What a partition asks of a filter."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Protocol, TypeVar

Row = TypeVar("Row", bound="tuple[Any, ...]")


class Where(Protocol):
    """A filter, over messages as they were fetched, or over rows whose first columns are a message's fields."""

    @property
    def fields(self) -> Collection[str]:
        """What it looks at, of headers, payload, key and id."""

    def matches(self, message: tuple[Any, ...]) -> bool:
        """Tell whether a message is to be dispatched."""

    def select(self, rows: Iterable[Row]) -> list[Row]:
        """Return those that are to be dispatched, in their order."""
