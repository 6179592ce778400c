"""One Spark session for all tests, on the test database. What they publish is committed: Spark's processes read it."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from sqlqueue.contrib.spark.session import register, session
from tests.contrib.spark.object_store import KEYS
from tests.databases.conftest import databases as databases

CONF = {
    "spark.master": "local[2]",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-Duser.timezone=UTC -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.noDataProgressEventInterval": "200",
    "spark.ui.showConsoleProgress": "false",
}


os.environ.update(KEYS)  # before Java starts: what its workers inherit


@pytest.fixture(scope="session")
def spark_session(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder = str(tmp_path_factory.mktemp("spark"))
    spark = session("sqlqueue tests", **CONF, **{"spark.local.dir": folder, "spark.sql.warehouse.dir": folder})
    spark.sparkContext.setLogLevel("ERROR")
    yield spark
    spark.stop()


@pytest.fixture
def spark(spark_session: SparkSession, transactional_db: None) -> Iterator[SparkSession]:
    """The session. After the test no query runs, and the project is the tests' again."""
    register(spark_session)
    yield spark_session
    for query in spark_session.streams.active:
        query.stop()
    register(spark_session)


@pytest.fixture
def read(spark: SparkSession) -> Callable[..., DataFrame]:
    """Read a table as a batch: read("receipts", topic="a", to=7)."""

    def load(table: str = "messages", **options: Any) -> DataFrame:
        reader = spark.read.format("sqlqueue").option("table", table)
        for name, value in options.items():
            reader = reader.option(name.rstrip("_"), value)
        return reader.load()

    return load
