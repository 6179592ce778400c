"""Rows by the hour that are computed repeatedly: upserted, and never overwritten with less than they hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from django.db import connections, models

from sqlqueue.core.hours import Columns, merged

AT_ONCE = 500


class HourlyQuerySet(models.QuerySet[Any]):
    """Queries of a model whose rows are identified by unique columns, `hour` and `topic` among them."""

    columns: ClassVar[Columns]

    def store(self, rows: Iterable[Mapping[str, Any]]) -> tuple[int, int]:
        """Insert or update rows; return how many, and how many of them held less than the stored ones, since messages
        were collected meanwhile. The stored values are kept then."""
        new = {tuple(row[name] for name in self.columns.unique): row for row in rows}
        known, less = merged(self.columns, self._near(new.values()), new.values())
        fields = {field.name for field in self.model._meta.concrete_fields} - {"id"}
        written = [row for row in known if tuple(row[name] for name in self.columns.unique) in new]
        targets = connections[self.db].features.supports_update_conflicts_with_target
        self.bulk_create(
            [self.model(**{name: row[name] for name in fields if name in row}) for row in written],
            batch_size=AT_ONCE,
            update_conflicts=True,
            update_fields=sorted(fields - set(self.columns.unique)),
            unique_fields=list(self.columns.unique) if targets else None,
        )
        return len(new), less

    def known(self, topic: str, days: Iterable[str] | None = None) -> list[dict[str, Any]]:
        """Return a topic's rows, of some UTC days or of all."""
        names = [field.name for field in self.model._meta.concrete_fields if field.name != "id"]
        rows = self.filter(topic=topic).values(*names)
        return list(rows) if days is None else [row for row in rows if f"{row['hour']:%Y-%m-%d}" in set(days)]

    def _near(self, new: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the stored rows of the new ones' topics between their first and last hour."""
        rows = list(new)
        if not rows:
            return []
        hours = [row["hour"] for row in rows]
        near = self.filter(topic__in={row["topic"] for row in rows}, hour__range=(min(hours), max(hours)))
        return [{name: value for name, value in row.items() if name != "id"} for row in near.values()]
