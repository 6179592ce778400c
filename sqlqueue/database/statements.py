"""Statements with the dialects' placeholders, over Django's connections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from django.db import IntegrityError, connections

from sqlqueue.database.dialects import DIALECTS, Dialect
from sqlqueue.database.error_codes import ErrorKind, classify
from sqlqueue.exceptions import ConfigurationError

K = TypeVar("K")


@cache
def dialect(alias: str) -> Dialect:
    """Return the dialect of a database alias."""
    vendor = connections[alias].vendor
    try:
        return DIALECTS[vendor]
    except KeyError:
        raise ConfigurationError(f"sqlqueue runs on MySQL, MariaDB, PostgreSQL and SQLite, not on {vendor}") from None


def execute(alias: str, text: str, parameters: Any = ()) -> Any:
    """Run a statement written with the dialects' placeholders; return Django's cursor."""
    connection = connections[alias]
    cursor = connection.cursor()
    cursor.execute(DIALECTS[connection.vendor].sql(text), parameters)
    return cursor


def insert_missing(
    alias: str, into: str, row: str, rows: Mapping[K, Sequence[object]], conflict: str, column: str
) -> set[K]:
    """Insert rows of which some may be there already, in one statement; return the keys of those that it has inserted.

    rows: values by that of `column`; row: the marks of one, in parentheses; conflict: the columns of the unique key.
    Where the server cannot say what it has inserted, it inserts all of them, or none if one is there already.
    """
    syntax = dialect(alias)
    text = f"INSERT INTO {into} VALUES {', '.join([row] * len(rows))}"
    values = [value for its in rows.values() for value in its]
    if syntax.returns_inserted:
        text += f" {syntax.ignore(conflict)} RETURNING {column}"
        return {key for (key,) in execute(alias, text, values).fetchall()}
    try:
        execute(alias, text, values)
    except IntegrityError as error:
        if classify(error) is not ErrorKind.DUPLICATE:
            raise
        return set()
    return set(rows)
