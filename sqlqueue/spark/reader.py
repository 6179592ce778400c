"""A batch read of a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceReader

from sqlqueue.spark.options import SourceOptions
from sqlqueue.spark.project import Project
from sqlqueue.spark.scan import TableScan


class BatchReader(DataSourceReader):
    """Reads a table up to the horizon at the time when its first query is planned, on READ_ALIAS unless the option
    `alias` names another database.

    It accepts no filters from Spark: 4.1 to 4.3 keep the filters of the last query with the loaded DataFrame, and apply
    them to its next query, or to the other side of a union. Options narrow a read instead.
    """

    def __init__(self, project: Project, options: SourceOptions, tasks: int):
        self._alias = options.alias or project.reading
        self._scan = TableScan(project.access(self._alias), options.table, options.table.chosen(options.columns))
        self._project: Project | None = project
        self._options = options
        self._tasks = options.tasks or tasks

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for the executors: the parameters of one database, not the project."""
        return {**self.__dict__, "_project": None}

    def partitions(self) -> list[Any]:
        """Return the portions of the tasks."""
        from django.db import connections

        from sqlqueue.spark import plan

        assert self._project is not None
        options, project = self._options, self._project
        alias = project.engine(self._alias)
        from sqlqueue.stats.replica import replicated_horizon  # its models need Django set up

        try:
            known_horizon = replicated_horizon if project.is_replica(self._alias) else None
            return plan.batch(alias, options, self._tasks, known_horizon)
        finally:
            connections.close_all()

    def read(self, partition: Any) -> Iterator[Any]:
        """Yield a portion's rows as Arrow batches."""
        return self._scan.read(partition)
