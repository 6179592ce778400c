"""IndexHeader: an operation for a project's own migrations, which indexes a header of the log's messages."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from django.core.management.base import CommandError
from django.db import router
from django.db.migrations.operations.base import Operation
from django.db.utils import NotSupportedError

from sqlqueue.database import header_index, online_migration
from sqlqueue.database.header_index import LOG
from sqlqueue.exceptions import ConfigurationError

NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")  # an identifier has at most 63 bytes
APP: Final = "sqlqueue"


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
        self._change(schema_editor, header_index.add)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Remove them."""
        self._change(schema_editor, header_index.remove)

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
        with online_migration.brief_waits(connection, [LOG], f"IndexHeader({self.name!r})"):
            change(schema_editor, self.name)
