"""The data source `sqlqueue`: it makes the reader or writer that the options ask for; and a batch read of a table."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, MutableMapping
from dataclasses import replace
from typing import Any, ClassVar, cast

from django.db import connections
from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from sqlqueue.contrib.spark import options
from sqlqueue.contrib.spark.options import SourceOptions
from sqlqueue.contrib.spark.project import Project
from sqlqueue.contrib.spark.scan import TableScan
from sqlqueue.contrib.spark.stream import StreamReader
from sqlqueue.contrib.spark.writer import Writer
from sqlqueue.database.server_identity import ServerIdentity
from sqlqueue.exceptions import ConfigurationError


class SqlqueueSource(DataSource):
    """The format `sqlqueue` of `read`, `readStream`, `write` and `writeStream`; spark.session registers it."""

    packed: ClassVar[bytes] = b""  # the pickled project
    tasks: ClassVar[int] = 2

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.given = dict(options)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "sqlqueue"

    def schema(self) -> str:
        """Return the columns of the table, or those that the option `columns` chooses."""
        known = tuple(dict.fromkeys((*options.READ, *options.STREAM)))
        values = options.read(self.given, known, "reading")
        columns = values.table.chosen(values.columns, self._project().several)
        return ", ".join(f"`{column.name}` {column.ddl}" for column in columns)

    def reader(self, schema: StructType) -> BatchReader:
        """Return the reader of a batch."""
        return BatchReader(*self._reading(options.READ, "a batch read", schema), self.tasks)

    def streamReader(self, schema: StructType) -> StreamReader:
        """Return the reader of a stream, which is a consumer group."""
        return StreamReader(*self._reading(options.STREAM, "a stream", schema), self.tasks)

    def writer(self, schema: StructType, overwrite: bool) -> Writer:
        """Return the writer that publishes rows."""
        if overwrite:
            raise ConfigurationError("messages are only added to the log: call .mode('append')")
        return Writer(self._project(), options.read(self.given, options.WRITE, "a write"), schema)

    streamWriter = writer

    def _reading(self, known: tuple[str, ...], doing: str, schema: StructType) -> tuple[Project, SourceOptions]:
        """Return what is read. Raises ConfigurationError if the caller's schema is not that of the options."""
        values, project = options.read(self.given, known, doing), self._project()
        expected = {column.name: column.ddl for column in values.table.chosen(values.columns, project.several)}
        if [(field.name, field.dataType.simpleString()) for field in schema] != list(expected.items()):
            raise ConfigurationError(
                f"table {values.table.name!r} is read with the columns {', '.join(expected)}, in that order and of "
                "fixed types: leave .schema(…) out, and choose some with the option columns"
            )
        return project, values

    def _project(self) -> Project:
        if not self.packed:
            raise ConfigurationError(
                "register the data source with sqlqueue.contrib.spark.session: session() or register(spark)"
            )
        return cast(Project, pickle.loads(self.packed))


class BatchReader(DataSourceReader):
    """Reads a table up to the horizon at the time when its first query is planned, on READ_ALIAS unless the option
    `database` names another database.

    It accepts no filters from Spark: 4.1 to 4.3 keep the filters of the last query with the loaded DataFrame, and apply
    them to its next query, or to the other side of a union. Options narrow a read instead.
    """

    def __init__(self, project: Project, options: SourceOptions, tasks: int):
        self._sources = project.sources(options, project.reading)
        self._scan = TableScan(options.table, options.table.chosen(options.columns, project.several))
        self._project, self._options = project, options
        self._tasks = options.tasks or tasks

    def partitions(self) -> list[Any]:
        """Return the portions of the tasks: of each database at least one."""
        project = self._project
        project.engine()
        try:
            placed = list(project.placed(self._sources, self._options.topics))
            databases = placed or list(self._sources)[:1]
            if len(databases) > 1 and self._options.names_offsets:
                raise ConfigurationError(
                    f"offsets and ids are those of one database, and this is on the databases {', '.join(databases)}:"
                    " name one with the option database"
                )
            tasks = max(1, self._tasks // len(databases))
            return [portion for database in databases for portion in self._portions(database, tasks)]
        finally:
            connections.close_all()

    def _portions(self, database: str, tasks: int) -> list[Any]:
        from sqlqueue.contrib.spark import plan
        from sqlqueue.stats.processes import replicated_horizon  # its models need Django set up

        name = self._sources[database]
        log = self._project.engine(name)
        with self._project.at(database):
            known_horizon = replicated_horizon if self._project.is_replica(name) else None
            server = ServerIdentity(log)
            found = plan.batch(log, self._options, tasks, server, known_horizon)
            server.confirm()
            return [replace(portion, database=database) for portion in found]

    def read(self, partition: Any) -> Iterator[Any]:
        """Yield a portion's rows as Arrow batches."""
        with self._project.task(self._sources[partition.database]) as log:
            yield from self._scan.read(log, partition)


def registered(project: Project, tasks: int) -> type[SqlqueueSource]:
    """Return a subclass of the data source for a project. Its module does not exist, so that it is pickled by value."""
    attributes: dict[str, Any] = {
        "packed": pickle.dumps(project),
        "tasks": tasks,
        "__module__": "sqlqueue.contrib.spark.registered",
    }
    return type("SqlqueueSource", (SqlqueueSource,), attributes)
