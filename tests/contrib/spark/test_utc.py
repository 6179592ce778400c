"""Days and hours are of UTC, whatever a session's time zone is."""

from collections.abc import Iterator
from datetime import datetime, timezone

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sqlqueue.contrib.spark import options
from sqlqueue.contrib.spark.analytics import days_of, of_days
from sqlqueue.contrib.spark.archive_rows import archived, utc_hour
from sqlqueue.contrib.spark.rehydrate import in_range
from sqlqueue.exceptions import ConfigurationError

pytestmark = [pytest.mark.once, pytest.mark.timeout(900)]


@pytest.fixture
def messages(spark_session: SparkSession) -> Iterator[DataFrame]:
    """A message of 20:45 in UTC, in a session where it is 2:15 of the next day."""
    spark_session.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    columns = "1L AS offset, 0 AS partition, 0 AS priority, 'k' AS key, 'i' AS id, '1' AS payload, NULL AS headers"
    rows = spark_session.sql(
        f"SELECT {columns}, timestamp'2024-02-28 20:45:00.5Z' AS created_at, '' AS target_group, NULL AS body,"
        " 't' AS topic"
    )
    yield rows
    spark_session.conf.set("spark.sql.session.timeZone", "UTC")


def test_days_and_hours_are_of_utc_in_a_session_of_another_zone(messages: DataFrame) -> None:
    assert [row["date"] for row in archived(messages).collect()] == ["2024-02-28"]
    assert [row["day"] for row in days_of(messages, "created_at").collect()] == ["2024-02-28"]
    assert of_days(messages, "created_at", ["2024-02-28"]).count() == 1
    (row,) = messages.select(F.unix_seconds(utc_hour("created_at")).alias("hour")).collect()
    assert row["hour"] == datetime(2024, 2, 28, 20, tzinfo=timezone.utc).timestamp()
    stored = archived(messages)
    assert in_range(stored, "t", since="2024-02-28T20:45:00.500000", until="2024-02-28T20:45:00.500001Z").count() == 1
    assert in_range(stored, "t", since="2024-02-28T20:45:01").count() == 0
    assert in_range(stored, "t", until="2024-02-28T20:45:00.5".ljust(26, "0")).count() == 0


def test_a_date_that_is_none_is_refused(messages: DataFrame) -> None:
    with pytest.raises(ConfigurationError, match=r"since must be a time such as .*, not '2023-02-29'"):
        in_range(archived(messages), "t", since="2023-02-29")


def test_a_key_keeps_its_spaces_and_no_wait_is_one() -> None:
    values = options.read({"key": " a ", "horizontimeout": "0", "topic": " t "}, options.READ, "a batch read")
    assert (values.keys, values.horizon_timeout, values.topics) == ((" a ",), 0, ("t",))
    assert options.read({}, options.READ, "a batch read").horizon_timeout == 60
