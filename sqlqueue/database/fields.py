"""Columns whose values compare byte by byte, columns for any text, and times that the database's clock gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import models
from django.db.models import DateTimeField, Func

if TYPE_CHECKING:
    CharField = models.CharField[str, str]
    TextField = models.TextField[str | None, str | None]
    Field = models.Field[Any, Any]
else:
    CharField = models.CharField
    TextField = models.TextField
    Field = models.Field

EVERY_CHARACTER = "utf8mb4_unicode_520_ci"  # MySQL's and MariaDB's
NOW = {
    "mysql": "UTC_TIMESTAMP(6)",  # NOW() would be in the server's time zone
    "sqlite": "STRFTIME('%%%%Y-%%%%m-%%%%d %%%%H:%%%%M:%%%%f000', 'now')",  # six digits, as Django writes times there
    "postgresql": "STATEMENT_TIMESTAMP()",  # NOW() would stand still for a whole transaction
}


class ExactField(CharField):
    """A string that equals only itself: 'A' is not 'a', and 'a ' is not 'a'.

    MySQL's usual collations fold case, and even its older binary ones ignore trailing spaces (PAD SPACE). PostgreSQL's
    tell all strings apart, but order them by rules that change with the system's libraries, and indexes with them.
    """

    def db_parameters(self, connection: Any) -> dict[str, Any]:
        """Return the column's type with the server's binary collation that does not pad (SQLite: the only one)."""
        parameters = super().db_parameters(connection)
        if connection.vendor == "mysql":
            exact = "utf8mb4_nopad_bin" if connection.mysql_is_mariadb else "utf8mb4_0900_bin"
            parameters["collation"] = exact
        elif connection.vendor == "postgresql":
            parameters["collation"] = "C"
        return parameters


class _Unicode(Field):
    """A text of any characters, whatever the database's own character set is: MySQL's may know some only."""

    def db_parameters(self, connection: Any) -> dict[str, Any]:
        """Return the column's type, on MySQL with a collation of utf8mb4."""
        parameters = super().db_parameters(connection)
        return parameters | {"collation": EVERY_CHARACTER} if connection.vendor == "mysql" else parameters


class UnicodeField(_Unicode, CharField):
    """A short one."""


class UnicodeTextField(_Unicode, TextField):
    """A long one, or none."""


class ShownJSON(models.JSONField):
    """A JSON value as plain SQL may have put it there; its text where Python cannot read it (nested too deep, a number
    of thousands of digits). In the database, and for migrations, it is a JSONField."""

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        """Return the value, or else the text."""
        try:
            return super().from_db_value(value, expression, connection)
        except (ValueError, RecursionError):
            return value

    def deconstruct(self) -> Any:
        """Say JSONField."""
        name, _, args, options = super().deconstruct()
        return name, "django.db.models.JSONField", args, options


class DatabaseNow(Func):
    """The database's own clock, in UTC, to the microsecond (SQLite: the millisecond)."""

    arity = 0
    output_field = DateTimeField()

    def as_sql(self, compiler: Any, connection: Any, *args: Any, **context: Any) -> Any:
        """Return the vendor's expression."""
        context["template"] = NOW[connection.vendor]
        return super().as_sql(compiler, connection, *args, **context)
