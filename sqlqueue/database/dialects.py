"""The words of an alias: which dialect it speaks, and statements in it over Django's connections."""

from __future__ import annotations

from typing import Any

from django.db import connections

from sqlqueue.database.words import DIALECTS, Dialect
from sqlqueue.exceptions import ConfigurationError


def dialect(alias: str) -> Dialect:
    """Return the dialect of a database alias."""
    vendor = connections[alias].vendor
    try:
        return DIALECTS[vendor]
    except KeyError:
        raise ConfigurationError(f"sqlqueue runs on MySQL, MariaDB, PostgreSQL and SQLite, not on {vendor}") from None


def execute(alias: str, text: str, parameters: Any = ()) -> Any:
    """Run a statement written in the dialects' words; return Django's cursor."""
    cursor = connections[alias].cursor()
    cursor.execute(DIALECTS[connections[alias].vendor].sql(text), parameters)
    return cursor
