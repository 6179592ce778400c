"""Batch reads go to READ_ALIAS; a stream and the archive never do."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from django.db import connection, connections
from pyspark.sql import SparkSession
from pytest_django import DjangoDbBlocker, Settings

from sqlqueue import publish
from sqlqueue.contrib.spark.session import register
from sqlqueue.models import Message
from tests.management.running import run

pytestmark = pytest.mark.once


@pytest.fixture
def lagging(
    tmp_path: Path, spark: SparkSession, settings: Settings, django_db_blocker: DjangoDbBlocker
) -> Iterator[None]:
    """The replica has one message; the log has two."""
    publish("t", "first")
    file = tmp_path / "replica.sqlite3"
    with closing(sqlite3.connect(file)) as target:
        connection.connection.backup(target)
    publish("t", "later")
    connections.settings["replica"] = {**connection.settings_dict, "NAME": str(file)}
    settings.SQLQUEUE = {"READ_ALIAS": "replica", "WAKE": False}
    with django_db_blocker.unblock():
        register(spark)
        yield
        connections["replica"].close()
    del connections["replica"], connections.settings["replica"]


def test_a_batch_reads_the_replica_and_what_moves_something_does_not(
    lagging: None, spark: SparkSession, tmp_path: Path
) -> None:
    def payloads(**options: str) -> list[str]:
        return sorted(
            row.payload for row in spark.read.format("sqlqueue").options(topic="t", **options).load().collect()
        )

    assert payloads() == ['"first"']
    assert payloads(database="default") == ['"first"', '"later"']

    said = run("queueanalytics", "--topic", "t", "--dry-run")
    assert said.code == 0, said
    first = Message.objects.earliest("offset").offset
    assert f"read from the replica 'replica', up to offset {first}\n" in said.out

    said = run("queuearchive", "--topic", "t", "--no-receipts", tmp_path / "archive")
    assert said.code == 0, said
    archived = spark.read.parquet(str(tmp_path / "archive" / "messages"))
    assert archived.count() == 2

    stream = spark.readStream.format("sqlqueue").options(topic="t", group="g", start="earliest").load()
    query = stream.writeStream.format("memory").queryName("seen").trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination(120)
    assert spark.sql("SELECT * FROM seen").count() == 2
