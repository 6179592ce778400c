"""The analytics say what happened, late rows included, and to run them again changes nothing."""

from collections import Counter
from datetime import datetime, timedelta, timezone
from pathlib import Path
from statistics import quantiles
from typing import Any

import pytest
from django.core.management import call_command
from pyspark.sql import SparkSession

from sqlqueue import NewMessage, Postpone, Reject, Retry, publish_many
from sqlqueue.contrib.spark.analytics import settled_by_hour
from sqlqueue.contrib.spark.models import HourlyError, HourlyStatistic
from sqlqueue.log.collect import collect
from sqlqueue.models import Message, Receipt
from tests.consuming import QUICK, Consuming
from tests.contrib.spark.archiving import archive
from tests.contrib.spark.test_archive_kills import known_horizon
from tests.factories import ReceiptFactory
from tests.logs import LOG

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(900)]

NOON = datetime(2013, 1, 31, 12, tzinfo=timezone.utc)
MESSAGES = 40


@pytest.fixture
def consumed(consuming: Consuming, settings) -> None:
    """Forty messages of two hours of one day, consumed by two groups of which one fails."""
    settings.SQLQUEUE = {**QUICK, "HISTORY": "all", "RETENTION": 0, "RECEIPT_RETENTION": 50 * 365 * 86_400}
    postponed: set[int] = set()

    @consuming.consumer("t", group="failing", max_attempts=2)
    def fail(delivery: Any) -> None:
        n = delivery.payload
        if n % 10 == 1 and delivery.attempt == 1:
            raise Retry(delay=0)
        if n % 10 == 2:
            raise Reject(f"message {n} is wrong")
        if n % 10 == 3:
            raise KeyError("never") if delivery.attempt == 2 else Retry(delay=0)
        if n % 10 == 4 and n not in postponed:
            postponed.add(n)
            raise Postpone(delay=0)

    consuming.consumer("t", lambda delivery: None, group="fine")
    publish_many("t", [NewMessage(n, key="busy" if n % 2 else f"k{n}") for n in range(MESSAGES)])
    consuming.drain()
    place_in_time()


def place_in_time() -> None:
    """Let message n be published n minutes after noon, and settled n milliseconds later, in n / 2 of them."""
    for message in Message.objects.filter(topic="t"):
        n = message.payload
        at = NOON + timedelta(minutes=3 * n)
        Message.objects.filter(offset=message.offset).update(created_at=at)
        end = at + timedelta(milliseconds=n)
        receipts = Receipt.objects.filter(message_offset=message.offset)
        receipts.update(started_at=end - timedelta(milliseconds=n / 2), finished_at=end)
    Message.objects.filter(topic="t_dlq").update(failed_at=NOON)


def stored() -> list[dict[str, Any]]:
    return [*HourlyStatistic.objects.order_by("id").values(), *HourlyError.objects.order_by("id").values()]


def analyse(*words: str) -> None:
    call_command("queueanalytics", "--topic=t", *words)


def test_they_equal_a_direct_computation(spark: SparkSession, consumed: None) -> None:
    analyse()
    for hour in (12, 13):
        at = NOON.replace(hour=hour)
        numbers = [n for n in range(MESSAGES) if (NOON + timedelta(minutes=3 * n)).hour == hour]
        own = HourlyStatistic.objects.get(topic="t", consumer_group="", hour=at)
        assert (own.published, own.top_key, own.top_key_messages) == (len(numbers), "busy", len(numbers) // 2)
        assert own.key_count == len(numbers) // 2 + 1
        fine = HourlyStatistic.objects.get(topic="t", consumer_group="fine", hour=at)
        assert (fine.acked, fine.retried, fine.postponed, fine.dead, fine.redelivered) == (len(numbers), 0, 0, 0, 0)
        cuts = quantiles(numbers, n=100, method="inclusive")
        for name, cut in (("p50", cuts[49]), ("p95", cuts[94]), ("p99", cuts[98])):
            assert getattr(fine, f"end_to_end_{name}") == pytest.approx(cut / 1000, abs=0.001)
        assert fine.handler_p50 == pytest.approx(cuts[49] / 2000, abs=0.001)
        failing = HourlyStatistic.objects.get(topic="t", consumer_group="failing", hour=at)
        ends = Counter(n % 10 for n in numbers)
        assert failing.acked == len(numbers) - ends[2] - ends[3]
        assert failing.dead == ends[2] + ends[3]
        assert failing.retried == ends[1] + ends[3] == failing.redelivered
        assert failing.postponed == ends[4]
    errors = dict(HourlyError.objects.values_list("fingerprint", "dead"))
    assert errors == {"message # is wrong": 4, "KeyError in spark/test_analytics.py:fail": 4}
    before = stored()
    analyse("--everything")
    assert stored() == before


def test_no_table_is_collected_on_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    """A broadcast join does that, and Spark chooses one for whatever Parquet has made small."""
    spark.range(1_000).selectExpr("id AS offset", "TIMESTAMP'2013-01-31 12:00:00' AS created_at").write.parquet(
        str(tmp_path / "messages")
    )
    receipts = spark.range(1_000).selectExpr(
        "id", "id AS offset", "'t' AS topic", "'g' AS group", "'acked' AS outcome", "1 AS attempts",
        "TIMESTAMP'2013-01-31 12:00:01' AS started_at", "TIMESTAMP'2013-01-31 12:00:02' AS finished_at",
    )  # fmt: skip
    hours = settled_by_hour(receipts, spark.read.parquet(str(tmp_path / "messages")))
    (hour,) = hours.collect()
    assert (hour["acked"], hour["end_to_end_p50"]) == (1_000, 2.0)
    plan = hours._jdf.queryExecution().executedPlan().toString()
    assert "Join" in plan
    assert "Broadcast" not in plan


def test_late_rows_and_collected_ones_are_counted(
    spark: SparkSession, consumed: None, consuming: Consuming, tmp_path: Path
) -> None:
    folder = tmp_path / "archive"
    analyse()
    archive(spark, folder, segment_rows=25)
    assert collect(LOG, known_horizon()).messages == MESSAGES
    publish_many("t", [NewMessage(n, key="late") for n in (0, 10, 20, 30)])
    consuming.drain()
    place_in_time()
    analyse(f"--archive={folder}")
    own = HourlyStatistic.objects.filter(consumer_group="").order_by("hour")
    assert [row.published for row in own] == [20 + 2, 20 + 2]
    fine = HourlyStatistic.objects.filter(consumer_group="fine").order_by("hour")
    assert [row.acked for row in fine] == [20 + 2, 20 + 2]
    assert all(row.end_to_end_p50 is not None for row in fine)


@pytest.mark.long
def test_nothing_is_forgotten_when_the_log_has_lost_it(spark: SparkSession, consumed: None, capsys) -> None:
    analyse()
    before = stored()
    assert collect(LOG, known_horizon()).messages == MESSAGES
    Message.objects.filter(topic="t_dlq").delete()
    analyse("--everything")
    assert "what was known is kept" in capsys.readouterr().out
    assert stored() == before
    Receipt.objects.all().delete()  # and the receipts, with which the day goes
    publish_many("t", [NewMessage(0)])
    place_in_time()
    analyse()
    groups = HourlyStatistic.objects.exclude(consumer_group="")
    assert [*groups.order_by("id").values()] == [
        row for row in before if row.get("acked") is not None and row["consumer_group"]
    ]


@pytest.mark.long
def test_what_becomes_visible_late_is_counted_however_much_has_happened_since(spark: SparkSession, settings) -> None:
    settings.SQLQUEUE = {**QUICK, "HISTORY": "all"}
    publish_many("t", [1])

    midnight = datetime(2013, 2, 1, tzinfo=timezone.utc)
    early = midnight - timedelta(seconds=1)
    ReceiptFactory.insert(30, started_at=midnight - timedelta(days=1))
    late = Receipt.objects.order_by("-id")[0].id + 1  # taken, and not committed yet
    ReceiptFactory(id=late + 1, started_at=midnight + timedelta(seconds=2))
    ReceiptFactory.insert(11_000, started_at=midnight + timedelta(seconds=2))
    Message.objects.update(created_at=midnight)
    analyse()
    ReceiptFactory(id=late, started_at=early)
    analyse()
    hours = HourlyStatistic.objects.exclude(consumer_group="").order_by("hour")
    found = list(hours.values_list("hour__day", "hour__hour", "acked"))
    assert found == [(31, 0, 30), (31, 23, 1), (1, 0, 11_001)]
