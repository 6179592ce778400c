"""The writer: rows are published in bulk through the gate; ids keep a repeated task from publishing them twice."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import NullType, StringType, StructType

from sqlqueue.contrib.spark.options import SourceOptions
from sqlqueue.contrib.spark.project import Project
from sqlqueue.core.keys import did_you_mean
from sqlqueue.exceptions import ConfigurationError

COLUMNS = ("topic", "payload", "body", "key", "id", "headers", "priority", "delay", "expires", "target_group")
IDS = "give the rows a column id with a fixed id for each, or set the option ids=none if duplicates do no harm"


# How Spark writes JSON of a payload: times in UTC as ISO 8601, and what is NULL, too.
AS_JSON = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
}


def to_json(column: Column) -> Column:
    """Return the JSON text of a struct, map, array or VARIANT, as a payload or as headers.

    Decimals are numbers with all their digits, binary is base64, and intervals, NaN and the keys of maps are texts.
    """
    return F.to_json(column, AS_JSON)


class Writer(DataSourceArrowWriter, DataSourceStreamArrowWriter):
    """Publishes rows, of `write` and of `writeStream`: a repeated batch has the same ids, and publishes nothing twice.

    It holds no connection, since it is sent to other machines.
    """

    def __init__(self, project: Project, options: SourceOptions, schema: StructType):
        refuse_columns(schema, options)
        self._project, self._options = project, options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Publish a task's rows, over one connection to each database that they belong to."""
        first = next(iterator, None)
        if first is not None:
            with self._project.task():
                from sqlqueue.contrib.spark import publisher  # its models need Django set up

                publisher.publish(self._options, chain([first], iterator))
        return WriterCommitMessage()

    def commit(self, messages: Any, batchId: int = 0) -> None:
        """Do nothing: each statement has committed by itself."""

    def abort(self, messages: Any, batchId: int = 0) -> None:
        """Do nothing: the database knows the ids that were published, also when the batch is repeated."""


def refuse_columns(schema: StructType, options: SourceOptions) -> None:
    """Raise ConfigurationError for columns that cannot become messages, before a row is written."""
    columns = schema.fieldNames()
    for field in schema:
        if field.name not in COLUMNS:
            raise ConfigurationError(
                f"sqlqueue cannot write a column {field.name!r}.{did_you_mean(field.name, COLUMNS)}"
            )
        if field.name in ("payload", "headers") and not isinstance(field.dataType, (StringType, NullType)):
            raise ConfigurationError(
                f"{field.name} must be JSON text, not {field.dataType.simpleString()}: make it by to_json() of "
                "sqlqueue.contrib.spark.writer"
            )
    if "payload" not in columns and "body" not in columns:
        raise ConfigurationError("sqlqueue needs a column payload to write, JSON text, or a column body: bytes")
    if "topic" not in columns and not options.topics:
        raise ConfigurationError(
            "sqlqueue needs a topic to publish to: set the option topic, or give the rows a column topic"
        )
    if len(options.topics) > 1:
        raise ConfigurationError(
            "the option topic names one topic to write to; for several give the rows a column topic"
        )
    if "id" not in columns and options.ids == "column":
        raise ConfigurationError("without ids a repeated task publishes its rows again: " + IDS)
