"""A read that is planned and carried out without Spark: every row once, however little of it goes at once."""

from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from sqlqueue import NewMessage, publish_many
from sqlqueue.contrib.spark import plan, scan
from sqlqueue.contrib.spark.options import SourceOptions
from sqlqueue.contrib.spark.scan import TableScan
from sqlqueue.contrib.spark.tables import MESSAGES
from sqlqueue.database import driver
from sqlqueue.database.server_identity import ServerIdentity
from sqlqueue.models import Message
from tests.consuming import QUICK
from tests.logs import LOG

pytestmark = pytest.mark.django_db(transaction=True)
TASKS, MESSAGES_OF_A_KEY, KEYS = 4, 10, 12


@pytest.fixture(autouse=True)
def messages(settings: Any) -> None:
    """Messages of two topics, side by side in the log, with gaps between them."""
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 3}
    for _ in range(MESSAGES_OF_A_KEY):
        for topic in ("t", "other"):
            publish_many(topic, [NewMessage("x" * 50, key=f"k{n}") for n in range(KEYS)])
    Message.objects.filter(offset__range=(60, 90)).delete()


def read() -> list[list[pa.RecordBatch]]:
    """Plan a read of topic t, and carry it out; return the batches of each task."""
    reading = TableScan(MESSAGES, MESSAGES.chosen(("offset", "payload")))
    portions = plan.batch(LOG, SourceOptions(topics=("t",)), TASKS, ServerIdentity(LOG))
    return [list(reading.read(LOG, portion)) for portion in portions]


def offsets(tasks: list[list[pa.RecordBatch]]) -> list[int]:
    return [offset for batches in tasks for batch in batches for offset in batch.column(0).to_pylist()]


@pytest.mark.parametrize(
    ("module", "lowered"),
    [
        (scan, {"BYTES": 200}),
        (scan, {"ROWS": 2}),
        (plan, {"LEAST_ROWS": 5}),
        (plan, {"MOST_INDEX_RANGES": 1}),
        (plan, {"BUCKETS": 3, "ROWS_WORTH_PARTING": 1}),  # what is found in a bucket is counted once more
        (plan, {"BUCKETS": 3, "ROWS_OF_ONE_QUERY": 7}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else value.__name__,
)
def test_every_row_is_read_once(monkeypatch: pytest.MonkeyPatch, module: Any, lowered: dict[str, int]) -> None:
    expected = list(Message.objects.filter(topic="t").order_by("offset").values_list("offset", flat=True))
    assert sorted(offsets(read())) == expected
    monkeypatch.setattr(driver, "ROWS_AT_ONCE", 2)  # of which a batch for Spark is made
    for name, few in lowered.items():
        monkeypatch.setattr(module, name, few)
    if most := lowered.get("ROWS_OF_ONE_QUERY"):  # a default, too
        monkeypatch.setattr(plan, "share", partial(plan.share, most=most))
    tasks = read()
    assert sorted(offsets(tasks)) == expected
    if module is scan:
        assert sum(map(len, tasks)) > len(expected) / 5
    if "LEAST_ROWS" in lowered:
        assert len(tasks) == TASKS


def test_a_batch_of_a_stream_ends_where_it_may_however_little_is_counted_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plan, "BUCKETS", 2)
    highest = Message.objects.order_by("-offset").values_list("offset", flat=True)[0]
    ends, done, server = [], 0, ServerIdentity(LOG)
    while (end := plan.next_end(LOG, SourceOptions(topics=("t",)), done, highest, 7, server)) > done:
        ends.append(Message.objects.filter(topic="t", offset__gt=done, offset__lte=end).count())
        done = end
    assert sum(ends) == Message.objects.filter(topic="t").count()
    assert max(ends) <= 7


def test_a_result_is_read_past_what_is_fetched_at_once() -> None:
    Message.objects.all().delete()
    publish_many("t", range(2 * driver.ROWS_AT_ONCE + 1))
    chunks = list(driver.streamed(LOG, 'SELECT "offset" FROM sqlqueue_message ORDER BY "offset"', ()))
    assert len(chunks) == 3
    found = [offset for chunk in chunks for (offset,) in chunk]
    assert found == list(Message.objects.order_by("offset").values_list("offset", flat=True))
