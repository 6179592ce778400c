"""Rows by the hour that are computed again and again: upserted, and never lowered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from django.db import connections, models

AT_ONCE = 500


class HourlyQuerySet(models.QuerySet[Any]):
    """Queries of a model whose rows are told apart by `unique` columns, `hour` and `topic` among them."""

    unique: ClassVar[Sequence[str]]
    counts: ClassVar[Sequence[str]]

    def store(self, rows: Iterable[Mapping[str, Any]]) -> tuple[int, int]:
        """Insert rows, or update those that are there; return how many were written, and how many were kept.

        A row whose counts would fall is kept as it is: what it was computed from has been collected meanwhile.
        """
        fields = {field.name for field in self.model._meta.concrete_fields} - {"id"}
        new = {tuple(row[name] for name in self.unique): row for row in rows}
        kept = [key for key in self._higher(new) if new.pop(key)]
        targets = connections[self.db].features.supports_update_conflicts_with_target
        self.bulk_create(
            [self.model(**{name: row[name] for name in fields if name in row}) for row in new.values()],
            batch_size=AT_ONCE,
            update_conflicts=True,
            update_fields=sorted(fields - set(self.unique)),
            unique_fields=list(self.unique) if targets else None,
        )
        return len(new), len(kept)

    def _higher(self, new: Mapping[tuple[Any, ...], Mapping[str, Any]]) -> list[tuple[Any, ...]]:
        """Return which rows are there with a count that is higher than the new one."""
        if not new:
            return []
        hours = [row["hour"] for row in new.values()]
        near = self.filter(topic__in={row["topic"] for row in new.values()}, hour__range=(min(hours), max(hours)))
        present = {tuple(row[name] for name in self.unique): row for row in near.values(*self.unique, *self.counts)}
        return [
            key
            for key, row in present.items()
            if key in new and any(new[key][count] < row[count] for count in self.counts)
        ]
