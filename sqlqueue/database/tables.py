"""Whether the queue's tables are those that this version needs."""

from __future__ import annotations

from functools import cache
from typing import Any

from django.core.management.base import CommandError
from django.db import connections, router
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

INITIAL = "0001_initial"
# The second migration of every development version before 1.0. No later migration may have this name.
OF_DEVELOPMENT = "0002_operations"
REFUSED = "the queue's tables in database {alias!r} are those of a development version of sqlqueue"
REMEDY = (
    "No migration leads on from there. Make the tables anew, without the messages in them: stop the queue's processes,"
    " run this in `python manage.py dbshell --database {alias}`, and migrate again:\n{statements}"
)


def pending_migrations(alias: str) -> bool:
    """Tell whether a migration of sqlqueue has not been applied here, or the tables are those of a development version.
    Two statements."""
    recorded = recorded_migrations(alias)
    return OF_DEVELOPMENT in recorded or not _migrations().issubset(recorded)


def recorded_migrations(alias: str) -> set[str]:
    """Return the names of sqlqueue's migrations that have been applied here. Two statements."""
    recorder = MigrationRecorder(connections[alias])
    if not recorder.has_table():
        return set()
    return set(recorder.migration_qs.filter(app="sqlqueue").values_list("name", flat=True))


def refuse_development_version(using: str, apps: Any, **kwargs: Any) -> None:
    """Raise CommandError, before every `migrate`, if the tables are those of a development version, with the statements
    that remove them. apps: the models as the recorded migrations made them."""
    recorded = recorded_migrations(using)
    if OF_DEVELOPMENT in recorded or (recorded == {INITIAL} and _lacks_columns(using, apps)):
        raise CommandError(f"{REFUSED.format(alias=using)}. Nothing was changed. {remedy(using)}")


def remedy(alias: str) -> str:
    """Return how tables of a development version are made anew, with the statements."""
    connection = connections[alias]
    tables = [name for name in connection.introspection.table_names() if name.startswith("sqlqueue_")]
    statements = [f"DROP TABLE {name};" for name in sorted(tables, reverse=True)]  # events before their work items
    if connection.vendor == "postgresql":
        statements.append("DROP SEQUENCE IF EXISTS sqlqueue_generation;")
    statements.append("DELETE FROM django_migrations WHERE app = 'sqlqueue';")
    return REMEDY.format(alias=alias, statements="\n".join(statements))


def _lacks_columns(alias: str, apps: Any) -> bool:
    introspection = connections[alias].introspection
    present = set(introspection.table_names())
    for model in apps.get_models():
        if model._meta.app_label != "sqlqueue" or not router.allow_migrate_model(alias, model):
            continue
        table, wanted = model._meta.db_table, {field.column for field in model._meta.concrete_fields}
        if table not in present:
            return True
        with connections[alias].cursor() as cursor:
            if not wanted <= {found.name for found in introspection.get_table_description(cursor, table)}:
                return True
    return False


@cache
def _migrations() -> frozenset[str]:
    """Return the names of sqlqueue's migrations: files, which stay what they are."""
    return frozenset(name for app, name in MigrationLoader(None).graph.nodes if app == "sqlqueue")
