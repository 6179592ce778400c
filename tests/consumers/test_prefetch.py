"""The payloads and headers that a process has in memory keep within PREFETCH_BYTES, whatever the messages have."""

import random
import threading
from typing import Any

import pytest

from sqlqueue import NewMessage, Retry, publish_many, subscribe
from sqlqueue.consumers.engine.loop import Loop
from sqlqueue.database import server_identity
from tests.consuming import QUICK, Consuming

pytestmark = [pytest.mark.once, pytest.mark.django_db(transaction=True)]

PARTITIONS, HEAVY, BYTES = 4, 30_000, 400_000
SIZES = [HEAVY if random.Random(16).random() < 0.5 or n % 40 > 30 else 10 for n in range(240)]


class Memory:
    """The most bytes of messages that a process had in memory after one of its reads, and that a read has brought."""

    def __init__(self) -> None:
        self.most = self.of_a_read = 0

    def note(self, assigned_partitions: Any) -> None:
        self.most = max(self.most, sum(assigned.held for assigned in assigned_partitions))


@pytest.fixture
def memory(consuming: Consuming, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Memory:
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": PARTITIONS, "PREFETCH_BYTES": BYTES}
    found = Memory()
    read, select = Loop._read, server_identity.select

    def reads(self: Loop, now: float) -> bool:
        try:
            return read(self, now)
        finally:
            found.note(self.ownership.assigned_partitions())

    def selects(*values: Any) -> Any:
        rows = select(*values)
        size = sum(len(value) for row in rows for value in row if isinstance(value, str | bytes))
        found.of_a_read = max(found.of_a_read, size)
        return rows

    monkeypatch.setattr(Loop, "_read", reads)
    for module in ("fetch", "messages"):
        monkeypatch.setattr(f"sqlqueue.log.{module}.select", selects)
    publish_many("t", [NewMessage("x" * size, key=f"k{n % 17}") for n, size in enumerate(SIZES)])
    return found


def check(memory: Memory) -> None:
    assert memory.most > BYTES // 4, "it is not used"
    assert memory.most <= BYTES + 6 * PARTITIONS * HEAVY
    assert memory.of_a_read <= BYTES


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch": True, "batch_size": 50},
        {"atomic": True, "commit_every": 50},
        {"ordering": "none"},
        {"where": {"key__in": [f"k{n}" for n in range(16)]}},
    ],
    ids=["handler", "batch", "grouped", "none", "filter"],
)
def test_no_more_bytes_are_in_memory_than_the_setting_says(
    memory: Memory, consuming: Consuming, options: dict[str, Any]
) -> None:
    lock, seen = threading.Lock(), []
    alone = not (options.get("batch") or options.get("atomic"))  # a failure repeats no other message

    def handle(given: Any) -> None:
        for delivery in given if options.get("batch") else [given]:
            size = len(delivery.payload)
            with lock:
                if alone and delivery.attempt == 1 and delivery.offset % 10 == 0:
                    raise Retry(delay=0)
                seen.append(size)

    consuming.consumer("t", handle, **options)
    consuming.drain()
    expected = [size for n, size in enumerate(SIZES) if "where" not in options or n % 17 < 16]
    assert sorted(seen) == sorted(expected)
    check(memory)


def test_async_handlers(memory: Memory, consuming: Consuming) -> None:
    seen: list[int] = []

    async def handle(delivery: Any) -> None:
        seen.append(len(delivery.payload))

    consuming.consumer("t", handle)
    consuming.drain()
    assert sorted(seen) == sorted(SIZES)
    check(memory)


def test_a_pull_loop(memory: Memory) -> None:
    seen: list[int] = []
    with subscribe("t", batch_size=50) as deliveries:
        for delivery in deliveries:
            seen.append(len(delivery.payload))
            delivery.ack()
            if len(seen) == len(SIZES):
                break
    assert sorted(seen) == sorted(SIZES)
    check(memory)
