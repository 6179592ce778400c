"""What docs/spark.md shows runs."""

from pathlib import Path

from pyspark.sql import SparkSession

from sqlqueue import publish_many
from sqlqueue.models import Message, Offset
from tests.documents import ROOT, blocks


def test_the_blocks_of_the_page_run(spark: SparkSession, tmp_path: Path) -> None:
    publish_many("flights", [{"carrier": carrier} for carrier in ("UA", "UA", "B6")])
    names = {"spark": spark, "folder": str(tmp_path)}
    found = [block for block in blocks(ROOT / "docs" / "spark.md") if block.mark == "spark"]
    assert len(found) == 3
    for block in found:
        exec(compile(block.text, str(block), "exec"), names)
    assert {row.carrier: row["count"] for row in names["carriers"].collect()} == {"UA": 2, "B6": 1}
    assert spark.read.parquet(f"{tmp_path}/flights").count() == 3
    assert Offset.objects.filter(consumer_group="lake").exists()
    assert Message.objects.filter(topic="imports").count() == 1000
    assert Message.objects.get(message_id="import-7").payload == {"number": 7, "sign": "🛫"}
