"""Reading a table as a batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceReader

from sqlqueue.spark.options import Options
from sqlqueue.spark.project import Project
from sqlqueue.spark.scan import Scan


class BatchReader(DataSourceReader):
    """Reads a table up to the horizon of the moment at which its first query is planned.

    It takes no filters from Spark, which (4.3, 4.2 and 4.1) keeps the last query's with the loaded DataFrame, and gives
    its next query, or the other side of a union, that one's rows. What narrows a read is an option.
    """

    def __init__(self, project: Project, options: Options, tasks: int):
        self._scan = Scan(project.access(options.alias), options.table, options.table.chosen(options.columns))
        self._project: Project | None = project
        self._options = options
        self._tasks = options.partitions or tasks

    def __getstate__(self) -> dict[str, Any]:
        """What goes to the executors: one database's parameters, not the project's."""
        return {**self.__dict__, "_project": None}

    def partitions(self) -> list[Any]:
        """Divide the rows among the tasks."""
        from django.db import connections

        from sqlqueue.spark import plan

        assert self._project is not None
        options = self._options
        alias = self._project.engine(options.alias)
        try:
            return plan.batch(alias, options, self._tasks)
        finally:
            connections.close_all()

    def read(self, partition: Any) -> Iterator[Any]:
        """Yield Arrow batches."""
        return self._scan.read(partition)
