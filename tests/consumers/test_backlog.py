"""A backlog is read through the log by all partitions together; everything of it is handled, once and in order."""

from collections import defaultdict
from typing import Any

import pytest

from sqlqueue import NewMessage, publish_many
from sqlqueue.consumers.engine import reader
from sqlqueue.core.keys import partition_of
from tests.consuming import QUICK, Consuming

pytestmark = pytest.mark.django_db(transaction=True)

PARTITIONS, MESSAGES, BATCH = 4, 400, 10
FEW = 5  # the last partition has one of so many messages


@pytest.mark.parametrize("name", ["BACKLOG", "MOST_WAITS", "READ_BYTES"])
@pytest.mark.parametrize("options", [{}, {"batch": True}], ids=["handler", "batch"])
def test_everything_is_handled_once_and_in_order(
    consuming: Consuming, settings: Any, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], name: str
) -> None:
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": PARTITIONS}
    monkeypatch.setattr(reader, "BACKLOG", 1)
    monkeypatch.setattr(reader, name, 1)
    keys = {partition_of(f"k{n}", PARTITIONS): f"k{n}" for n in range(100)}
    chosen = [PARTITIONS - 1 if n % FEW == 0 else n % (PARTITIONS - 1) for n in range(MESSAGES)]
    publish_many("t", [NewMessage(n, key=keys[partition]) for n, partition in enumerate(chosen)])
    seen: dict[str, list[int]] = defaultdict(list)

    @consuming.consumer("t", batch_size=BATCH, **options)
    def handle(given: Any) -> None:
        for delivery in given if options else [given]:
            seen[delivery.key].append(delivery.payload)

    consuming.drain()
    assert sorted(number for numbers in seen.values() for number in numbers) == list(range(MESSAGES))
    assert all(numbers == sorted(numbers) for numbers in seen.values())
