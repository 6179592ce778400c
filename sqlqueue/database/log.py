"""A log: one database that has sqlqueue's tables, and what depends on its server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from typing import Any, TypeVar

from django.db import IntegrityError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from sqlqueue.conf import settings
from sqlqueue.database.dialects import DIALECTS, Composed, Dialect
from sqlqueue.database.error_codes import ErrorKind, classify
from sqlqueue.database.generations import FIRST
from sqlqueue.exceptions import ConfigurationError

K = TypeVar("K")

_made: list[Log] = []


class Log:
    """The log in the database of one Django alias. `Log.of(alias)` returns the same object for the same alias."""

    def __init__(self, alias: str):
        self.alias = alias
        # What this process knows of the layouts of topics. It may be wrong: a publish statement that was made by it
        # says so.
        self.layout = FIRST
        self.has_writer = False  # whether the gate has named a server to this process, see writer
        _made.append(self)

    @staticmethod
    @cache
    def of(alias: str) -> Log:
        """Return the log of a database alias."""
        return Log(alias)

    @property
    def label(self) -> str:
        """Its alias, as it is shown where there are several logs; "" if there is one only."""
        return self.alias if settings.several else ""

    @property
    def connection(self) -> BaseDatabaseWrapper:
        """This thread's connection."""
        return connections[self.alias]

    @cached_property
    def dialect(self) -> Dialect:
        """The SQL of its server. Raises ConfigurationError for a database that sqlqueue does not run on."""
        vendor = connections[self.alias].vendor
        if vendor not in DIALECTS:
            raise ConfigurationError(f"sqlqueue runs on MySQL, MariaDB, PostgreSQL and SQLite, not on {vendor}")
        return DIALECTS[vendor]

    def execute(self, text: str, parameters: Any = ()) -> Any:
        """Run a statement written with the dialects' placeholders; return Django's cursor."""
        cursor = connections[self.alias].cursor()
        cursor.execute(text if type(text) is Composed else self.dialect.sql(text), parameters)
        return cursor

    def insert_missing(
        self, into: str, row: str, rows: Mapping[K, Sequence[object]], conflict: str, column: str
    ) -> set[K]:
        """Insert rows of which some may be there already, in one statement; return the keys of the new ones.

        into: the table and its columns
        row: the marks of one row, in parentheses
        rows: a row's values, by that of `column`
        conflict: the columns of the unique key

        Where the server cannot say what it has inserted, it inserts all of them, or none if one is there already.
        """
        syntax = self.dialect
        text = f"INSERT INTO {into} VALUES {', '.join([row] * len(rows))}"
        values = [value for its in rows.values() for value in its]
        if not syntax.slotted:
            text += f" {syntax.ignore(conflict)} RETURNING {column}"
            return {key for (key,) in self.execute(text, values).fetchall()}
        try:
            self.execute(text, values)
        except IntegrityError as error:
            if classify(error) is not ErrorKind.DUPLICATE:
                raise
            return set()
        return set(rows)

    def disconnect(self) -> None:
        """Close this thread's connection, and forget how it was made."""
        self.connection.close()
        del connections[self.alias]

    def atomic(self, **options: Any) -> transaction.Atomic:
        """Return Django's `atomic` on this log."""
        return transaction.atomic(using=self.alias, **options)

    def on_commit(self, hook: Callable[[], object], robust: bool = False) -> None:
        """Call a hook once this thread's transaction on this log has committed; at once without one."""
        transaction.on_commit(hook, using=self.alias, robust=robust)

    def __reduce__(self) -> tuple[Any, ...]:
        return Log.of, (self.alias,)

    def __str__(self) -> str:
        return self.alias

    def __repr__(self) -> str:
        return f"Log({self.alias!r})"


def forget_layouts() -> None:
    """Forget what is known of the layouts of topics, and of writers: for databases that were emptied."""
    for log in _made:
        log.layout, log.has_writer = FIRST, False


def home_log() -> Log:
    """Return the log of SQLQUEUE["DATABASE"]."""
    return Log.of(settings.DATABASE)


def all_logs() -> tuple[Log, ...]:
    """Return all logs."""
    return tuple(map(Log.of, settings.aliases))


def logs_of(topic: str) -> tuple[Log, ...]:
    """Return the logs that a topic's keys are spread over, in the order of their aliases in the setting."""
    return tuple(map(Log.of, settings.databases_of(topic)))


def reading_log(log: Log) -> Log:
    """Return the log for what only looks at a log: that of READ_ALIAS, a replica of SQLQUEUE["DATABASE"], for this one.
    What it finds may be behind: nothing that changes the queue may follow from it."""
    return Log.of(settings.READ_ALIAS) if settings.READ_ALIAS and log == home_log() else log
