"""Whether the queue's tables are those that this version needs."""

from __future__ import annotations

from functools import cache

from django.db import connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder


def pending_migrations(alias: str) -> bool:
    """Tell whether a migration of sqlqueue has not been applied here. Two statements."""
    applied_migrations = MigrationRecorder(connections[alias])
    wanted = _migrations()
    if not applied_migrations.has_table():
        return bool(wanted)
    applied = applied_migrations.migration_qs.filter(app="sqlqueue").values_list("name", flat=True)
    return not wanted.issubset(applied)


@cache
def _migrations() -> frozenset[str]:
    """Return the names of sqlqueue's migrations: files, which stay what they are."""
    return frozenset(name for app, name in MigrationLoader(None).graph.nodes if app == "sqlqueue")
