"""A topic's successor on other shards (docs/shards.md): its messages wait until those of the former one are settled."""

from collections.abc import Iterator
from typing import Any

import pytest

from sqlqueue import NewMessage, consumer, publish_many
from sqlqueue.consumers.registry import registry
from sqlqueue.models import Message
from sqlqueue.testing import drain
from tests.management.running import run
from tests.shards.aliases import A, B

KEYS = [f"key-{number}" for number in range(8)]


@pytest.fixture(autouse=True)
def handled(shards: dict[str, Any], settings: Any) -> Iterator[list[tuple[str, int]]]:
    """Let one handler serve both topics; the value is what it has handled."""
    settings.SQLQUEUE = shards | {"TOPICS": {"mail": {"shards": ["a"]}, "mail2": {"shards": ["a", "b"]}}}
    registry.discover()
    present = registry.consumers, registry.duplicates, registry.schedules
    registry.consumers, registry.duplicates, registry.schedules = {}, [], {}
    seen: list[tuple[str, int]] = []

    @consumer("mail", group="g")
    @consumer("mail2", group="g")
    def handle(delivery: Any) -> None:
        seen.append((delivery.key, delivery.payload))

    yield seen
    registry.consumers, registry.duplicates, registry.schedules = present


def test_a_successor_takes_over_in_the_order_of_each_key(handled: list[tuple[str, int]]) -> None:
    publish_many("mail", [NewMessage(number, key=key) for number in (1, 2) for key in KEYS])
    assert run("queuetopic", "create", "mail2").code == 0
    assert run("queuepause", "mail2").code == 0  # also on shard b, which has no message of it yet
    publish_many("mail2", [NewMessage(number, key=key) for number in (3, 4) for key in KEYS])
    assert all(Message.objects.using(alias).filter(topic="mail2").exists() for alias in (A, B))
    drain()
    assert sorted(handled) == [(key, number) for key in KEYS for number in (1, 2)]
    assert run("queueresume", "mail2").code == 0
    drain()
    for key in KEYS:
        assert [number for other, number in handled if other == key] == [1, 2, 3, 4]
