"""IndexHeader: an operation for a project's own migrations, which indexes a header of the log's messages.

On SQLite, MySQL and MariaDB such a header has a virtual generated column `header_NAME`, which takes no room in the
rows, and an index `sqlqueue_header_NAME` of (it, topic, offset); on PostgreSQL an index of that name over the same
expression. Only the first characters of a value are in it, so that a publisher can send any header: no index refuses a
row.

The models do not know of it: the library's own statements name their columns. Where SQLite makes the table anew for a
migration of the library, `kept` brings column and index back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from django.core.management.base import CommandError
from django.db import router
from django.db.migrations.operations.base import Operation
from django.db.utils import NotSupportedError

from sqlqueue.database.lock_timeouts import brief_waits
from sqlqueue.database.log import Log
from sqlqueue.exceptions import ConfigurationError

NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")  # an identifier has at most 63 bytes
APP: Final = "sqlqueue"
LOG: Final = "sqlqueue_message"
PREFIX: Final = "sqlqueue_header_"  # of the index
COLUMN_PREFIX: Final = "header_"
LENGTH: Final = 200  # characters of a value that are in the index
SEARCHED_LENGTH: Final = LENGTH - 1  # a text of at most so many equals no cut value

# The indexes of the log whose names begin so. PostgreSQL: those that are complete.
INDEXES: Final = {
    "sqlite": f"SELECT name FROM sqlite_master WHERE type = 'index' AND tbl_name = '{LOG}'",
    "mysql": f"""
        SELECT DISTINCT index_name FROM information_schema.statistics
        WHERE table_schema = DATABASE() AND table_name = '{LOG}'
    """,
    "postgresql": f"""
        SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
        WHERE i.indrelid = TO_REGCLASS('{LOG}') AND i.indisvalid
    """,
}
# The newest messages of a topic with a value. Index: the header's, and no optimizer shall take the primary key for it;
# PostgreSQL cannot be told, but no other index serves this form.
FIND: Final = """
    SELECT "offset" FROM sqlqueue_message{index}
    WHERE "{column}" = %s AND topic = %s AND "offset" > %s AND "offset" <= %s ORDER BY "offset" DESC LIMIT %s
"""
FIND_BY_ROWS: Final = """
    SELECT "offset" FROM sqlqueue_message WHERE ({header}, topic, "offset") > (%s, %s, %s)
    AND ({header}, topic, "offset") <= (%s, %s, %s) ORDER BY {header} DESC, topic DESC, "offset" DESC LIMIT %s
"""


class IndexHeader(Operation):
    """Index a header of all messages, for the admin's search and for SQL.

    class Migration(migrations.Migration):
        atomic = False
        dependencies = [("sqlqueue", "0001_initial")]
        operations = [IndexHeader("tenant_id")]

    The migration belongs to an app of the project, and has to be run on the queue's database. `atomic = False` is
    needed on PostgreSQL, where the index is made CONCURRENTLY: publishers and consumers go on.

    Raises ConfigurationError for a name that has other characters than ASCII letters, digits, `_` and `-`, or more than
    40.
    """

    reversible = True
    atomic = False
    reduces_to_sql = False  # what it does depends on what is there

    def __init__(self, name: str):
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ConfigurationError(
                f"IndexHeader takes the name of a header, of at most 40 ASCII letters, digits, _ and -, not {name!r}"
            )
        self.name = name

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        """See Django's."""
        return type(self).__qualname__, [self.name], {}

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Nothing: no model has the column."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Make column and index, as far as they are not there."""
        self._change(schema_editor, add)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Remove them."""
        self._change(schema_editor, remove)

    def describe(self) -> str:
        """See Django's."""
        return f"Index the header {self.name} of the queue's messages"

    @property
    def migration_name_fragment(self) -> str:
        """See Django's."""
        return f"index_header_{self.name.lower().replace('-', '_')}"

    def _change(self, schema_editor: Any, change: Callable[[Any, str], None]) -> None:
        connection = schema_editor.connection
        if not router.allow_migrate(connection.alias, APP, model_name="message"):
            return
        if LOG not in connection.introspection.table_names():
            raise CommandError(
                f"IndexHeader({self.name!r}): there is no table {LOG}. Let the migration depend on one of sqlqueue's:"
                ' dependencies = [("sqlqueue", "0001_initial")]'
            )
        if connection.vendor == "postgresql" and connection.in_atomic_block:
            raise NotSupportedError(
                f"IndexHeader({self.name!r}) cannot run in a transaction, since publishers would wait: write atomic ="
                " False into the migration"
            )
        with brief_waits(connection, [LOG], f"IndexHeader({self.name!r})"):
            change(schema_editor, self.name)


def column_of(name: str) -> str:
    """Return the column of an indexed header."""
    return COLUMN_PREFIX + name


def indexed_headers(log: Log) -> list[str]:
    """Return the names of the headers that have an index, sorted. One small statement."""
    rows = log.execute(INDEXES[log.connection.vendor].strip()).fetchall()
    return sorted(name.removeprefix(PREFIX) for (name,) in rows if name.startswith(PREFIX))


def find(log: Log, name: str, value: str, topic: str, most: int, low: int, high: int) -> list[int]:
    """Return the offsets of a topic's messages above `low` and at or below `high` whose indexed header has this value,
    at most `most`, the highest first. value: of at most SEARCHED_LENGTH characters."""
    if log.connection.vendor == "postgresql":
        text = FIND_BY_ROWS.format(header=_expression(log.connection, name))
        values: tuple[object, ...] = (value, topic, low, value, topic, high, most)
    else:
        way = {"mysql": ' FORCE INDEX ("{}")', "sqlite": ' INDEXED BY "{}"'}[log.connection.vendor]
        text = FIND.format(column=column_of(name), index=way.format(PREFIX + name))
        values = (value, topic, low, high, most)
    return [offset for (offset,) in log.execute(text, values).fetchall()]


@contextmanager
def kept(schema_editor: Any) -> Iterator[None]:
    """Bring back the headers' columns and indexes where SQLite makes the log anew."""
    connection = schema_editor.connection
    before = indexed_headers(Log.of(connection.alias))
    yield
    if before and LOG in connection.introspection.table_names():
        for name in before:
            add(schema_editor, name)


def _expression(connection: Any, name: str) -> str:
    """Return SQL for the first characters of a header."""
    if connection.vendor == "postgresql":
        return f"LEFT(headers ->> '{name}', {LENGTH})"
    if connection.vendor == "sqlite":
        # Without a space behind the commas, at which Django would take a column's definition apart.
        return f"SUBSTR(JSON_EXTRACT(headers,'$.\"{name}\"'),1,{LENGTH})"
    return f"LEFT(JSON_VALUE(headers, '$.\"{name}\"'), {LENGTH})"


def _column(connection: Any, name: str) -> str:
    exact = "text"
    if connection.vendor == "mysql":
        collation = "utf8mb4_nopad_bin" if connection.mysql_is_mariadb else "utf8mb4_0900_bin"
        exact = f"varchar({LENGTH}) CHARACTER SET utf8mb4 COLLATE {collation}"
    return f"{exact} GENERATED ALWAYS AS ({_expression(connection, name)}) VIRTUAL"


def add(schema_editor: Any, name: str) -> None:
    """Make a header's column and index, as far as they are not there."""
    connection = schema_editor.connection
    quote = connection.ops.quote_name
    index, column = quote(PREFIX + name), quote(column_of(name))
    if name in indexed_headers(Log.of(connection.alias)):
        return
    if connection.vendor == "postgresql":
        # What an interrupted attempt has left is not valid.
        schema_editor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {index}", params=None)
        schema_editor.execute(
            f'CREATE INDEX CONCURRENTLY {index} ON {LOG} (({_expression(connection, name)}), topic, "offset")',
            params=None,
        )
        return
    if not _has_column(connection, name):
        schema_editor.execute(f"ALTER TABLE {LOG} ADD COLUMN {column} {_column(connection, name)}", params=None)
    schema_editor.execute(f"CREATE INDEX {index} ON {LOG} ({column}, topic, {quote('offset')})", params=None)


def remove(schema_editor: Any, name: str) -> None:
    """Remove them."""
    connection = schema_editor.connection
    quote = connection.ops.quote_name
    index, column = quote(PREFIX + name), quote(column_of(name))
    if connection.vendor == "postgresql":
        schema_editor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {index}", params=None)
        return
    if name in indexed_headers(Log.of(connection.alias)):
        on = f" ON {LOG}" if connection.vendor == "mysql" else ""
        schema_editor.execute(f"DROP INDEX {index}{on}", params=None)
    if _has_column(connection, name):
        schema_editor.execute(f"ALTER TABLE {LOG} DROP COLUMN {column}", params=None)


def _has_column(connection: Any, name: str) -> bool:
    with connection.cursor() as cursor:
        described = connection.introspection.get_table_description(cursor, LOG)
    return column_of(name).lower() in {found.name.lower() for found in described}
