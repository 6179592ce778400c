"""Drivers of their own process, on a cluster: python -m tests.contrib.spark.jobs JOB MASTER FOLDER.

Each task passes some rows on, says that it has begun, and waits until there is a file `go`: so a worker can be killed
in the middle of it.
"""

import json
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

BATCHES = 3  # that a task passes on before it waits: 1,500 rows, of which 1,000 are published
ROWS = 8_000  # that are published
TIMEOUT = 300


def gated(frame: DataFrame, folder: Path) -> DataFrame:
    """Return a DataFrame whose tasks wait in the middle."""
    return frame.mapInArrow(partial(_wait_in_the_middle, str(folder)), frame.schema)


def _wait_in_the_middle(folder: str, batches: Iterator[Any]) -> Iterator[Any]:
    for number, batch in enumerate(batches):
        yield batch
        if number == BATCHES - 1:
            (Path(folder) / f"begun-{uuid.uuid4().hex}").touch()
            deadline = time.monotonic() + TIMEOUT
            while not (Path(folder) / "go").exists():
                assert time.monotonic() < deadline
                time.sleep(0.05)


def batch(spark: SparkSession, folder: Path) -> list[int]:
    """Read the log; return its offsets."""
    frame = spark.read.format("sqlqueue").options(topic="t", columns="offset", numPartitions="4").load()
    return [row.offset for row in gated(frame, folder).collect()]


def write(spark: SparkSession, folder: Path) -> list[int]:
    """Publish rows."""
    ids = F.concat(F.lit("id-"), "id")
    rows = spark.range(ROWS).select(ids.alias("id"), (F.col("id") % 7).cast("string"), F.col("id").cast("string"))
    rows = rows.toDF("id", "key", "payload").repartition(4)
    gated(rows, folder).write.format("sqlqueue").option("topic", "t").mode("append").save()
    return []


def stream(spark: SparkSession, folder: Path) -> list[int]:
    """Stream the log into files; return the offsets that they hold."""
    options = {"topic": "t", "group": "lake", "columns": "offset", "maxRowsPerBatch": "12000", "numPartitions": "4"}
    frame = gated(spark.readStream.format("sqlqueue").options(**options).load(), folder)
    writer = frame.writeStream.format("parquet").option("path", str(folder / "files"))
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    return [row.offset for row in spark.read.parquet(str(folder / "files")).collect()]


JOBS: dict[str, Callable[[SparkSession, Path], list[int]]] = {"batch": batch, "write": write, "stream": stream}


def main(job: str, master: str, folder: Path) -> None:
    """Run a job once both executors are there, and store what it has found."""
    from sqlqueue.contrib.spark.session import session
    from tests.contrib.spark.cluster import CONF, WORKERS

    spark = session(f"tests of {job}", **{**CONF, "spark.master": master})
    status = spark.sparkContext._jsc.sc()
    while status.getExecutorMemoryStatus().size() <= WORKERS:  # the driver counts as one
        time.sleep(0.1)
    found = JOBS[job](spark, folder)
    (folder / "result").write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
