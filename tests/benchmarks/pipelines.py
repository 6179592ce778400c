"""Do by other means what `make pipeline` has done with Spark, and compare: python -m tests.benchmarks.pipelines.

Needs the database and the folder that `make pipeline` has left (VAR_DIR), and requirements/pipeline.txt. With
`--times 1 10 50` it also computes the statistics of so many copies of the archive both ways: how either grows.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

SHARES = "[0.5, 0.95, 0.99]"
MILLISECONDS = "CAST(round(date_diff('microsecond', {start}, r.finished_at) / 1000) AS BIGINT)"
HANDLER, END_TO_END = MILLISECONDS.format(start="r.started_at"), MILLISECONDS.format(start="m.created_at")
STATISTICS = f"""
    SELECT date_trunc('hour', r.finished_at) AS hour, r."group", COUNT(*) FILTER (outcome = 'acked') AS acked,
    COUNT(*) FILTER (outcome = 'retried') AS retried, COUNT(*) FILTER (outcome = 'dead') AS dead,
    quantile_cont({HANDLER}, {SHARES}) AS handler,
    quantile_cont({END_TO_END}, {SHARES}) FILTER (outcome = 'acked') AS end_to_end
    FROM read_parquet('{{receipts}}') r JOIN read_parquet('{{messages}}') m USING ("offset") GROUP BY ALL
"""
PUBLISHED = """
    WITH keyed AS (SELECT date_trunc('hour', created_at) AS hour, key, COUNT(*) AS messages, MAX("offset") AS last
    FROM read_parquet('{messages}') GROUP BY ALL)
    SELECT hour, SUM(messages), COUNT(*), arg_max(key, messages), MAX(messages), MAX(last) FROM keyed GROUP BY hour
"""
# Each copy has offsets of its own, and keys and payloads as they are.
COPIES = """
    COPY (SELECT * REPLACE ("offset" + copy * 10000000 AS "offset") FROM read_parquet('{source}/*/*/*/*.parquet'),
    range({times}) copies(copy)) TO '{target}' (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 250000)
"""
BATCH = 50_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, nargs="*", default=[], help="sizes to compute the statistics of")
    arguments = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
    import django

    django.setup()
    from django.conf import settings

    from sqlqueue.models import Message, Receipt

    archive = settings.VAR_DIR / "lake" / "archive"
    rows = Message.objects.filter(topic="flights").count(), Receipt.objects.count()
    table = Table("the same work without Spark", "rows", "seconds", "rows/s")
    for name, count, work in (
        ("archive messages: one process, Django's cursor and pyarrow", rows[0], write_messages),
        ("statistics: DuckDB over the archive, 2 threads", sum(rows), lambda: statistics(archive)),
    ):
        seconds = timed(work)
        table.add_row(name, f"{count:,}", f"{seconds:.1f}", f"{count / seconds:,.0f}")
    Console().print(table)
    if arguments.times:
        Console().print(growth(archive, arguments.times))


def growth(archive: Path, sizes: list[int]) -> Table:
    """Compute the hours of so many copies with Spark and with DuckDB."""
    import duckdb

    from sqlqueue.contrib.spark.session import session

    spark = session("growth", **{"spark.master": "local[2]", "spark.driver.memory": "4g"})
    table = Table("rows", "Spark, seconds", "DuckDB, seconds", title="statistics by hour, local[2] and 2 threads")
    for times in sizes:
        with tempfile.TemporaryDirectory() as folder:
            files = {kind: Path(folder, f"{kind}.parquet") for kind in ("messages", "receipts")}
            for kind, file in files.items():
                duckdb.execute(COPIES.format(source=archive / kind, times=times, target=file))
            rows = sum(spark.read.parquet(str(file)).count() for file in files.values())
            with_spark(spark, files)  # to warm up
            seconds = timed(lambda files=files: with_spark(spark, files)), timed(lambda files=files: with_duckdb(files))
            table.add_row(f"{rows:,}", *(f"{some:.1f}" for some in seconds))
    spark.stop()
    return table


def with_spark(spark: Any, files: dict[str, Path]) -> None:
    from sqlqueue.contrib.spark.analytics import hourly

    messages, receipts = (spark.read.parquet(str(files[kind])) for kind in ("messages", "receipts"))
    hourly(messages, receipts, messages).write.format("noop").mode("overwrite").save()


def with_duckdb(files: dict[str, Path]) -> None:
    import duckdb

    connection = duckdb.connect(config={"threads": 2})
    connection.execute(PUBLISHED.format(messages=files["messages"])).fetchall()
    connection.execute(STATISTICS.format(messages=files["messages"], receipts=files["receipts"])).fetchall()


def timed(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


def write_messages() -> None:
    """Write the log's messages to one Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet
    from django.db import connection

    names = ("offset", "partition", "partition_key", "message_id", "payload", "headers", "created_at", "target_group")
    with tempfile.TemporaryDirectory() as folder, connection.cursor() as cursor:
        quoted = ", ".join(connection.ops.quote_name(name) for name in names)
        cursor.execute(f"SELECT {quoted} FROM sqlqueue_message WHERE topic = 'flights'")
        file = None
        while rows := cursor.fetchmany(BATCH):
            batch = pa.table({name: pa.array(map(str, column)) for name, column in zip(names, zip(*rows))})
            file = file or pa.parquet.ParquetWriter(Path(folder, "messages.parquet"), batch.schema, compression="zstd")
            file.write_table(batch)
        file.close()


def statistics(archive: Path) -> None:
    """Compute the groups' statistics, and see that they are the ones that Spark has stored."""
    import duckdb

    from sqlqueue.contrib.spark.models import HourlyStatistic

    connection = duckdb.connect(config={"threads": 2})
    connection.execute("SET TimeZone = 'UTC'")
    files = {kind: f"{archive}/{kind}/*/*/*/*.parquet" for kind in ("messages", "receipts")}
    found = connection.execute(STATISTICS.format(**files)).fetchall()
    stored = {(row.hour, row.consumer_group): row for row in HourlyStatistic.objects.exclude(consumer_group="")}
    assert len(found) == len(stored)
    for hour, group, acked, retried, dead, handler, end_to_end in found:
        row = stored[hour, group]
        assert (acked, retried, dead) == (row.acked, row.retried, row.dead)
        for name, quantiles in (("handler", handler), ("end_to_end", end_to_end)):
            for share, milliseconds in zip(("p50", "p95", "p99"), quantiles):
                assert abs(getattr(row, f"{name}_{share}") - milliseconds / 1000) < 0.0011, (group, name, share)


if __name__ == "__main__":
    main()
