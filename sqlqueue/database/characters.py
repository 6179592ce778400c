"""The character sets of the queue's columns: a database that does not say utf8mb4 has tables that know some only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.db import models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

from sqlqueue.database.fields import ExactField

COLUMNS = """
    SELECT column_name, character_set_name, collation_name FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = %s AND character_set_name IS NOT NULL
"""


def convert(schema_editor: BaseDatabaseSchemaEditor, model: type[models.Model]) -> None:
    """Give the text columns of a table their character set and collation, in one statement, if any has not: MySQL and
    MariaDB. An exact column must have its own collation, another one any of utf8mb4."""
    if schema_editor.connection.vendor != "mysql" or model._meta.proxy:
        return
    changes: list[str] = []
    values: list[Any] = []
    for field in _unfit(schema_editor.connection, model):
        definition, parameters = schema_editor.column_sql(model, field)
        changes.append(f"MODIFY {schema_editor.quote_name(str(field.column))} {definition}")
        values += parameters or ()
    if changes:
        table = schema_editor.quote_name(model._meta.db_table)
        schema_editor.execute(f"ALTER TABLE {table} {', '.join(changes)}", values)


def _unfit(connection: Any, model: type[models.Model]) -> Iterator[models.Field[Any, Any]]:
    with connection.cursor() as cursor:
        cursor.execute(COLUMNS, [model._meta.db_table])
        present = {name: (characters, collation) for name, characters, collation in cursor.fetchall()}
    for field in model._meta.local_concrete_fields:
        wanted = field.db_parameters(connection).get("collation")
        if wanted is None or field.column not in present:
            continue
        characters, collation = present[field.column]
        if collation != wanted if isinstance(field, ExactField) else characters != "utf8mb4":
            yield field
