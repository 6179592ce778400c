"""Measure the data source on a private MariaDB server: `make benchmark-spark`.

Rows a second of this run on this machine, medians of three after one to warm up, beside Spark's own JDBC source (where
Debian's libmariadb-java is installed) and beside one process without Spark that does the same work.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.logs import LOG
from tests.servers.mariadb import PrivateMariaDB

JDBC_JAR = Path(os.environ.get("JDBC_JAR", "/usr/share/java/mariadb-java-client.jar"))
CORES = 2
FEW = "offset,topic,partition,key,id,created_at"
RUNS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    arguments = parser.parse_args()
    with PrivateMariaDB(options=("--innodb-buffer-pool-size=1G",)) as server, tempfile.TemporaryDirectory() as folder:
        os.environ["DATABASE_URL"] = server.url("mysql")
        os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
        import django

        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        Bench(Path(folder), arguments.rows, server.port).run()


class Bench:
    def __init__(self, folder: Path, rows: int, port: int):
        self.folder, self.rows, self.port = folder, rows, port
        self.figures: list[tuple[str, float, str]] = []

    def run(self) -> None:
        from sqlqueue.contrib.spark.session import session

        began = time.perf_counter()
        conf = {"spark.master": f"local[{CORES}]", "spark.driver.memory": "1g", "spark.ui.showConsoleProgress": "false"}
        jars = {"spark.driver.extraClassPath": str(JDBC_JAR)} if JDBC_JAR.exists() else {}
        self.spark = session("benchmark", **conf, **jars)
        self.spark.sparkContext.setLogLevel("ERROR")
        self.say("session", time.perf_counter() - began, "s to start, once")
        self.write()
        self.batch()
        self.stream()
        self.spark.stop()
        self.publish_without_spark()  # last: the reads before it find one topic's rows only
        table = Table(title=f"{self.rows:,} messages of 200 bytes, local[{CORES}]")
        table.add_column("what")
        table.add_column("figure", justify="right")
        for what, figure, unit in self.figures:
            table.add_row(what, f"{figure:,.1f} {unit}" if unit != "rows/s" else f"{figure:,.0f} rows/s")
        Console(width=120).print(table)

    def say(self, what: str, figure: float, unit: str = "rows/s") -> None:
        self.figures.append((what, figure, unit))
        print(what, round(figure, 1), unit, flush=True)

    def rate(self, what: str, work: Callable[[], object], rows: int = 0, warm: bool = True) -> None:
        """Note the median of three runs."""
        seconds = []
        for _ in range(RUNS + warm):
            began = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - began)
        self.say(what, (rows or self.rows) / statistics.median(seconds[warm:]))

    def write(self) -> None:
        from pyspark.sql import functions as F

        from sqlqueue.models import Message

        def frame(rows: int) -> Any:
            payload = F.concat(F.lit('{"filler": "'), F.repeat(F.lit("x"), 180), F.lit('"}'))
            key = F.concat(F.lit("k"), F.col("id") % 997)
            columns = F.concat(F.lit("row "), F.col("id")).alias("id"), key.alias("key"), payload.alias("payload")
            return self.spark.range(0, rows, 1, CORES).select(*columns)

        def publish() -> None:
            frame(self.rows).write.format("sqlqueue").option("topic", "bench").mode("append").save()

        frame(1_000).write.format("sqlqueue").option("topic", "warm").mode("append").save()
        began = time.perf_counter()
        publish()
        self.say("write, all new", self.rows / (time.perf_counter() - began))
        began = time.perf_counter()
        publish()
        self.say("write, all known", self.rows / (time.perf_counter() - began))
        assert Message.objects.filter(topic="bench").count() == self.rows
        if JDBC_JAR.exists():
            self.jdbc_append(frame(self.rows))

    def jdbc(self, more: str = "") -> dict[str, str]:
        """Return the JDBC source's options for this server."""
        url = f"jdbc:mysql://127.0.0.1:{self.port}/mysql?permitMysqlScheme=true{more}"
        return {"url": url, "driver": "org.mariadb.jdbc.Driver", "user": "root"}

    def jdbc_append(self, rows: Any) -> None:
        """Append to a table like the log: without its gate, partitions and answers to repeated rows."""
        from django.db import connection
        from pyspark.sql import functions as F

        with connection.cursor() as cursor:
            cursor.execute("CREATE TABLE appended LIKE sqlqueue_message")
        rows = rows.select(
            F.lit("bench").alias("topic"),
            F.lit(0).alias("partition"),
            F.col("key").alias("partition_key"),
            F.col("id").alias("message_id"),
            "payload",
        )
        options = {**self.jdbc("&rewriteBatchedStatements=true"), "dbtable": "appended", "batchsize": "1000"}
        began = time.perf_counter()
        rows.write.format("jdbc").options(**options).mode("append").save()
        self.say("Spark's JDBC source, append", self.rows / (time.perf_counter() - began))
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE appended")

    def batch(self) -> None:
        from sqlqueue.contrib.spark.options import READ, read
        from sqlqueue.contrib.spark.plan import batch
        from sqlqueue.contrib.spark.scan import TableScan
        from sqlqueue.database.server_identity import ServerIdentity

        def source(columns: str = "") -> Any:
            options = {"topic": "bench", "numPartitions": str(2 * CORES), "columns": columns}
            return self.spark.read.format("sqlqueue").options(**options).load()

        def jdbc(columns: str = "*") -> Any:
            names = columns.replace("offset", "`offset`").replace("key", "partition_key").replace(",id", ",message_id")
            bounds = {"partitionColumn": "offset", "lowerBound": "1", "upperBound": str(self.rows)}
            options = {
                **self.jdbc(),
                "dbtable": f"(SELECT {names.replace('partition,', '`partition`,')} FROM sqlqueue_message) m",
                "numPartitions": str(2 * CORES),
                "fetchsize": "10000",
            }
            return self.spark.read.format("jdbc").options(**options, **bounds).load()

        said = read({"topic": "bench"}, READ, "a batch read")

        def plain(few: bool, sink: Callable[[Any], None]) -> None:
            scan = TableScan(said.table, said.table.chosen(FEW.split(",") if few else ()))
            for portion in batch(LOG, said, 1, ServerIdentity(LOG)):
                for found in scan.read(LOG, portion):
                    sink(found)

        def noop(frame: Any) -> None:
            frame.write.format("noop").mode("overwrite").save()

        def parquet(frame: Any) -> None:
            frame.write.option("compression", "zstd").mode("overwrite").parquet(str(self.folder / "read"))

        self.rate("read, all columns", lambda: noop(source()))
        self.rate("read, 6 columns without payload", lambda: noop(source(FEW)))
        self.rate("read to Parquet", lambda: parquet(source()))
        if JDBC_JAR.exists():
            self.rate("Spark's JDBC source, all columns", lambda: noop(jdbc()))
            self.rate("Spark's JDBC source, 6 columns", lambda: noop(jdbc(FEW)))
            self.rate("Spark's JDBC source to Parquet", lambda: parquet(jdbc()))
        self.rate("one process without Spark, all columns to Arrow", lambda: plain(False, lambda found: None))
        self.rate("one process without Spark, 6 columns to Arrow", lambda: plain(True, lambda found: None))
        self.rate("one process without Spark, to Parquet", lambda: self.to_parquet(plain))

    def to_parquet(self, plain: Callable[..., None]) -> None:
        import pyarrow.parquet as pq

        writers: list[Any] = []

        def sink(found: Any) -> None:
            if not writers:
                writers.append(pq.ParquetWriter(self.folder / "plain.parquet", found.schema, compression="zstd"))
            writers[0].write_batch(found)

        plain(False, sink)
        writers[0].close()

    def publish_without_spark(self) -> None:
        from sqlqueue import NewMessage, publish_many

        payload = {"filler": "x" * 180}
        began = time.perf_counter()
        for first in range(0, self.rows, 1_000):
            numbers = range(first, min(first + 1_000, self.rows))
            publish_many("plain", [NewMessage(payload, key=f"k{n % 997}", id=f"row {n}") for n in numbers])
        self.say("one process without Spark, publish_many", self.rows / (time.perf_counter() - began))

    def stream(self) -> None:
        def archive() -> None:
            shutil.rmtree(self.folder / "stream", ignore_errors=True)
            options = {"topic": "bench", "group": f"g{time.time_ns()}", "maxRowsPerBatch": str(self.rows // 4)}
            stream = self.spark.readStream.format("sqlqueue").options(**options).load()
            writer = stream.writeStream.format("parquet").option("path", str(self.folder / "stream" / "data"))
            writer = writer.option("checkpointLocation", str(self.folder / "stream" / "checkpoint"))
            writer.trigger(availableNow=True).start().awaitTermination()
            assert self.spark.read.parquet(str(self.folder / "stream" / "data")).count() == self.rows

        self.rate("stream to Parquet, four batches, with its start", archive)


if __name__ == "__main__":
    main()
