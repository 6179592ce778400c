"""Spark publishes the same flights as the example project does, and finds the same delays in them as it does."""

from itertools import islice
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from example_project.flights.data import read_flights
from example_project.flights.expected import expected_results
from example_project.flights.lake import READING, delays, flight_messages, flights, unpack
from example_project.flights.publishing import flight_message
from example_project.flights.results import DelayTotals
from sqlqueue.contrib.spark.backfill import in_order, publish
from sqlqueue.contrib.spark.files import read_files
from sqlqueue.models import Message

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(900)]

COUNT = 1_000


def test_spark_publishes_and_reads_the_real_flights_as_they_are(spark: SparkSession, tmp_path: Path) -> None:
    file = unpack(tmp_path)
    with file.open() as lines:
        some = tmp_path / "some.csv"
        some.write_text("".join(islice(lines, COUNT + 1)))
    messages = flight_messages(read_files(spark, [str(some)], "csv", READING))
    assert publish(in_order(messages, 2), "flights") == COUNT
    expected = [flight_message(flight) for flight in read_flights(COUNT)]
    found = {message.message_id: message for message in Message.objects.filter(topic="flights")}
    assert len(found) == COUNT
    for message in expected:
        row = found[message.id]
        assert (row.payload, row.partition_key) == (message.payload, message.key)
    for key in {message.key for message in expected if message.key}:
        offsets = [found[message.id].offset for message in expected if message.key == key]
        assert offsets == sorted(offsets)
    log = spark.read.format("sqlqueue").option("topic", "flights").load()
    totals = delays(flights(log.where(F.col("key") != "")), "origin", "carrier").collect()
    departed = expected_results(flight for flight in read_flights(COUNT) if flight.tail_number)
    names = ("flights", "departed", "cancelled", "total_delay", "max_delay")
    assert {
        (row["origin"], row["carrier"]): DelayTotals(**{name: row[name] for name in names}) for row in totals
    } == departed.delays
