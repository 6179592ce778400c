"""Migrations of a queue that is in use: publishers never wait long behind one, and no offset is issued again.

A change of a table waits for every transaction that has read it, and every later transaction waits behind the change:
one forgotten reader would stop all publishers, on MySQL for a day. So a change waits briefly, see lock_timeouts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import migrations, router
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import ProjectState

from sqlqueue.database import index_header, sequence
from sqlqueue.database.lock_timeouts import brief_waits


class Migration(migrations.Migration):
    """A migration whose statements wait briefly for the tables that they change, and that keeps SQLite's sequences
    and indexed headers.

    Raises CommandError if one is in use for too long. Nothing has been changed then if it was so from the beginning;
    on PostgreSQL nothing ever has.
    """

    def apply(
        self, project_state: ProjectState, schema_editor: BaseDatabaseSchemaEditor, collect_sql: bool = False
    ) -> ProjectState:
        """See Django's."""
        with _online(self, project_state, schema_editor):
            return super().apply(project_state, schema_editor, collect_sql)

    def unapply(
        self, project_state: ProjectState, schema_editor: BaseDatabaseSchemaEditor, collect_sql: bool = False
    ) -> ProjectState:
        """See Django's."""
        with _online(self, project_state, schema_editor):
            return super().unapply(project_state, schema_editor, collect_sql)


@contextmanager
def _online(migration: Migration, state: ProjectState, schema_editor: Any) -> Iterator[None]:
    connection = schema_editor.connection
    if schema_editor.collect_sql:
        yield
        return
    tables = sorted(set(_tables(migration, state, connection.alias)))
    with brief_waits(connection, tables, f"sqlqueue.{migration.name}"):
        if connection.vendor != "sqlite":
            yield
            return
        with sequence.kept(connection), index_header.kept(schema_editor):
            yield


def _tables(migration: Migration, state: ProjectState, alias: str) -> Iterator[str]:
    """Yield the tables that are there before a migration and that it changes; none if they are on another database."""
    for operation in migration.operations:
        model = getattr(operation, "model_name_lower", None) or getattr(operation, "name_lower", None)
        if model is not None and (migration.app_label, model) in state.models:
            found = state.apps.get_model(migration.app_label, model)
            if router.allow_migrate_model(alias, found):
                yield found._meta.db_table
