"""Migrations of a queue that is in use: publishers never wait long behind one, and no offset is issued again.

A change of a table waits for every transaction that has read it, and every later transaction waits behind the change:
one forgotten reader would stop all publishers, on MySQL for a day. So a change waits for seconds only, lets the others
go on, and tries again a few times.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.core.management.base import CommandError
from django.db import Error, migrations, router
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import ProjectState

from sqlqueue.database import header_index, retries, sequence

WAIT = 3  # seconds that a statement waits for a table, and publishers behind it
PAUSE = 1.0  # seconds between two tries, for the publishers
TRIES = 5

LIMIT = "SET SESSION lock_wait_timeout = CAST(LEAST(@@SESSION.lock_wait_timeout, %s) AS UNSIGNED)"
RESTORE = "SET SESSION lock_wait_timeout = %s"
LIMIT_TRANSACTION = "SELECT SET_CONFIG('lock_timeout', %s, TRUE) WHERE CURRENT_SETTING('lock_timeout') = '0'"


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
        with sequence.kept(connection), header_index.kept(schema_editor):
            yield


@contextmanager
def brief_waits(connection: Any, tables: Sequence[str], name: str) -> Iterator[None]:
    """Let statements wait briefly for these tables, which they change. name: of what changes them, for the CommandError
    that is raised if one is in use for too long."""
    try:
        if connection.vendor == "mysql":
            with connection.cursor() as cursor:
                cursor.execute("SELECT @@SESSION.lock_wait_timeout")
                (before,) = cursor.fetchone()
                cursor.execute(LIMIT, [WAIT])
            try:
                # A migration is no transaction there: one that finds the tables in use should not even begin.
                _touch(connection, tables)
                with connection.execute_wrapper(_insist):
                    yield
            finally:
                with connection.cursor() as cursor:
                    cursor.execute(RESTORE, [before])
        else:
            if connection.vendor == "postgresql" and connection.in_atomic_block:
                with connection.cursor() as cursor:
                    cursor.execute(LIMIT_TRANSACTION, [f"{WAIT}s"])
            yield
    except Error as error:
        if retries.classify(error) is not retries.ErrorKind.CONTENTION:
            raise
        raise CommandError(
            f"{name} waited too long for a table: a transaction that has used it is still open, and "
            f"publishers must not wait behind a migration. End it, or wait for it, and migrate again. ({error})"
        ) from error


def _tables(migration: Migration, state: ProjectState, alias: str) -> Iterator[str]:
    """Yield the tables that are there before a migration and that it changes; none if they are on another database."""
    for operation in migration.operations:
        model = getattr(operation, "model_name_lower", None) or getattr(operation, "name_lower", None)
        if model is not None and (migration.app_label, model) in state.models:
            found = state.apps.get_model(migration.app_label, model)
            if router.allow_migrate_model(alias, found):
                yield found._meta.db_table


def _touch(connection: Any, tables: Sequence[str]) -> None:
    """Have these tables alone for a moment. Raises the database's error if they are not to be had in time."""
    if not tables or connection.in_atomic_block:
        return
    with connection.cursor() as cursor:
        try:
            _insist(cursor.execute, "LOCK TABLES " + ", ".join(f"{table} WRITE" for table in tables))
        except Error as error:
            if retries.classify(error) is retries.ErrorKind.CONTENTION:
                raise
            return  # without the privilege (LOCK TABLES), or in a cluster: then it shows at the first change
        cursor.execute("UNLOCK TABLES")


def _insist(execute: Callable[..., Any], *arguments: Any) -> Any:
    """Execute a statement; try again, some times, if it did not get what it waited for."""
    for left in reversed(range(TRIES)):
        try:
            return execute(*arguments)
        except Error as error:
            if not left or retries.classify(error) is not retries.ErrorKind.CONTENTION:
                raise
            time.sleep(PAUSE)
    raise AssertionError("unreachable")
