"""Do by other means what `make pipeline` has done with Spark, and compare: python -m tests.benchmarks.pipelines.

Needs the database and the folder that `make pipeline` has left (VAR_DIR), and requirements/pipeline.txt.
"""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

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
    FROM read_parquet('{{folder}}/receipts/*/*/*/*.parquet') r
    JOIN read_parquet('{{folder}}/messages/*/*/*/*.parquet') m USING ("offset") GROUP BY ALL
"""
BATCH = 50_000


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
    import django

    django.setup()
    from django.conf import settings

    from sqlqueue.models import Message, Receipt

    archive = settings.VAR_DIR / "lake" / "archive"
    rows = Message.objects.count(), Receipt.objects.count()
    table = Table("the same work without Spark", "rows", "seconds", "rows/s")
    for name, count, work in (
        ("archive messages: one process, Django's cursor and pyarrow", rows[0], write_messages),
        ("statistics: DuckDB over the archive, 2 threads", sum(rows), lambda: statistics(archive)),
    ):
        seconds = timed(work)
        table.add_row(name, f"{count:,}", f"{seconds:.1f}", f"{count / seconds:,.0f}")
    Console().print(table)


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

    from sqlqueue.models import HourlyStatistic

    connection = duckdb.connect(config={"threads": 2})
    connection.execute("SET TimeZone = 'UTC'")
    found = connection.execute(STATISTICS.format(folder=archive)).fetchall()
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
