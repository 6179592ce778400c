"""Publishing a DataFrame as messages."""

from __future__ import annotations

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F


def publish(messages: DataFrame, topic: str) -> int:
    """Publish rows (payload, key, id, and optionally headers, priority and target_group); return how many rows were
    sent. The database adds those whose ids it does not have."""
    seen = Observation()
    rows = messages.observe(seen, F.count(F.lit(1)).alias("rows"))
    rows.write.format("sqlqueue").mode("append").option("topic", topic).save()
    return int(seen.get["rows"])
