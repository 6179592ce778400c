"""Payloads of bytes in Spark: read, archived, rehydrated and published as they are."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from sqlqueue import publish
from sqlqueue.contrib.spark.files import ROW
from sqlqueue.contrib.spark.rehydrate import archived_messages, rehydrated
from sqlqueue.models import Message, ScheduledMessage
from sqlqueue.payloads.versions import UNKNOWN
from sqlqueue.testing import published
from tests.consuming import QUICK
from tests.contrib.spark.archiving import archive, as_archived, decoded, rows_in

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(900)]

CONTENT = bytes(range(256))
PDF = "application/pdf"


@pytest.fixture(autouse=True)
def quick(settings: Any) -> None:
    settings.SQLQUEUE = QUICK


def test_bytes_go_through_reads_the_archive_and_back(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    publish("files", CONTENT, key="k", content_type=PDF, expires=3600)
    publish("files", b"", key="k")
    publish("files", {"n": 1}, key="k")
    read = spark.read.format("sqlqueue").option("table", "messages").option("topic", "files").load()
    found = [None if row.body is None else bytes(row.body) for row in read.orderBy("offset").collect()]
    assert found == [CONTENT, b"", None]
    archive(spark, folder, "files", segment_rows=2)
    rows = sorted(map(decoded, rows_in(folder)), key=lambda row: int(row["offset"]))
    assert rows == [as_archived(message) for message in Message.objects.filter(topic="files").order_by("offset")]
    back = rehydrated(archived_messages(spark, str(folder), "files"), label="again").drop(ROW)
    back.withColumn("topic", F.lit("copies")).write.format("sqlqueue").mode("append").save()
    copies = {one.content_type: (one.payload, one.headers) for one in published("copies")}
    assert copies == {PDF: (CONTENT, {}), UNKNOWN: (b"", {}), None: ({"n": 1}, {})}
    assert not Message.objects.filter(topic="copies").exclude(expires_at=None).exists()


def test_rows_of_bytes_become_messages(spark: SparkSession) -> None:
    rows = [("files", bytearray(CONTENT), "a", '{"sqlqueue-content-type": "application/pdf"}', None)]
    rows.append(("files", bytearray(b"later"), "b", None, 3600.0))
    kind = "topic string, body binary, id string, headers string, delay double"
    spark.createDataFrame(rows, kind).write.format("sqlqueue").mode("append").save()
    first, later = published("files")
    assert (first.payload, first.content_type, first.headers) == (CONTENT, PDF, {})
    assert later.payload == b"later"
    assert ScheduledMessage.objects.count() == 1
    both = spark.createDataFrame(
        [("files", "1", bytearray(b"x"), "c")], "topic string, payload string, body binary, id string"
    )
    with pytest.raises(PySparkException, match="a row has a payload and a body"):
        both.write.format("sqlqueue").mode("append").save()
