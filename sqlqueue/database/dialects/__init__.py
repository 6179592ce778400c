"""The dialects: what each vendor's SQL says in a way of its own, one module a vendor. Needs no Django."""

from __future__ import annotations

from sqlqueue.database.dialects.base import Composed, Dialect
from sqlqueue.database.dialects.mysql import MySQL
from sqlqueue.database.dialects.postgresql import PostgreSQL
from sqlqueue.database.dialects.sqlite import SQLite

__all__ = ["DIALECTS", "Composed", "Dialect", "MySQL", "PostgreSQL", "SQLite"]

DIALECTS: dict[str, Dialect] = {kind.vendor: kind() for kind in (MySQL, SQLite, PostgreSQL)}
