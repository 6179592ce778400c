"""A batch read of a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.db import connections
from pyspark.sql.datasource import DataSourceReader

from sqlqueue.contrib.spark.options import SourceOptions
from sqlqueue.contrib.spark.project import Project
from sqlqueue.contrib.spark.scan import TableScan
from sqlqueue.database.server_identity import ServerIdentity
from sqlqueue.exceptions import ConfigurationError


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
        from sqlqueue.stats.replica import replicated_horizon  # its models need Django set up

        name = self._sources[database]
        log = self._project.engine(name)
        with self._project.at(database):
            known_horizon = replicated_horizon if self._project.is_replica(name) else None
            server = ServerIdentity(log)
            identity = server.identity  # of before the look at the horizon
            found = plan.batch(log, self._options, tasks, known_horizon, server)
            server.confirm()
            return [portion.on(database, identity) for portion in found]

    def read(self, partition: Any) -> Iterator[Any]:
        """Yield a portion's rows as Arrow batches."""
        with self._project.task(self._sources[partition.database]) as log:
            yield from self._scan.read(log, partition)
