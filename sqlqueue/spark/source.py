"""The data source `sqlqueue`: which reader or writer the options ask for."""

from __future__ import annotations

import pickle
from collections.abc import MutableMapping
from typing import Any, ClassVar, cast

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

from sqlqueue.exceptions import ConfigurationError
from sqlqueue.spark import options
from sqlqueue.spark.options import Options
from sqlqueue.spark.project import Project
from sqlqueue.spark.reader import BatchReader
from sqlqueue.spark.stream import StreamReader
from sqlqueue.spark.tables import INT, LONG, STRING, TIME
from sqlqueue.spark.writer import BatchWriter, Publishing, StreamWriter

TYPES = {LONG: LongType, INT: IntegerType, STRING: StringType, TIME: TimestampType}


class SqlqueueSource(DataSource):
    """`spark.read.format("sqlqueue")`, and the other three. sqlqueue.spark.session registers it."""

    packed: ClassVar[bytes] = b""  # the project: executors get this class, too, and never look into it
    tasks: ClassVar[int] = 2

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.given = dict(options)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "sqlqueue"

    def schema(self) -> StructType:
        """Return the columns of the table, or those that are chosen."""
        known = tuple(dict.fromkeys((*options.READ, *options.STREAM)))
        return struct(options.read(self.given, known, "reading"))

    def reader(self, schema: StructType) -> BatchReader:
        """Return what reads a table as a batch."""
        said = options.read(self.given, options.READ, "a batch read")
        refuse_other(schema, said)
        return BatchReader(self._project(), said, self.tasks)

    def streamReader(self, schema: StructType) -> StreamReader:
        """Return what reads the log as a consumer group."""
        said = options.read(self.given, options.STREAM, "a stream")
        refuse_other(schema, said)
        return StreamReader(self._project(), said, self.tasks)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return what publishes rows."""
        return BatchWriter(self._publishing(schema, overwrite, "a write"))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Return what publishes a stream's rows."""
        return StreamWriter(self._publishing(schema, overwrite, "a streaming write"))

    def _publishing(self, schema: StructType, overwrite: bool, doing: str) -> Publishing:
        if overwrite:
            raise ConfigurationError("messages are only added to the log: say .mode('append')")
        said = options.read(self.given, options.WRITE, doing)
        project = self._project()
        access = project.access(said.alias)
        return Publishing(access, project.topics, said, schema.fieldNames(), project.most_bytes)

    def _project(self) -> Project:
        if not self.packed:
            raise ConfigurationError(
                "register the data source with sqlqueue.spark.session: session() or register(spark)"
            )
        return cast(Project, pickle.loads(self.packed))


def struct(said: Options) -> StructType:
    """Return the schema of the columns that the options choose."""
    columns = said.table.chosen(said.columns)
    return StructType([StructField(column.name, TYPES[column.ddl]()) for column in columns])


def refuse_other(schema: StructType, said: Options) -> None:
    """Refuse a schema of somebody's own that is not what the options say."""
    expected = struct(said)
    if schema != expected:
        columns = ", ".join(expected.fieldNames())
        raise ConfigurationError(
            f"table {said.table.name!r} is read with the columns {columns}, in that order and of fixed types: leave "
            ".schema(…) out, and choose some with the option columns"
        )


def registered(project: Project, tasks: int) -> type[SqlqueueSource]:
    """Return a class of the data source that knows the project. It is pickled with what it knows: no module has it."""
    known: dict[str, Any] = {"packed": pickle.dumps(project), "tasks": tasks, "__module__": "sqlqueue.spark.registered"}
    return type("SqlqueueSource", (SqlqueueSource,), known)
