"""The search finds what reading the whole log would find, in the same order."""

import random
from itertools import product
from typing import Any

import pytest

from sqlqueue.core.keys import partition_of
from sqlqueue.database.log import Log
from sqlqueue.log.topics import stored
from sqlqueue.models import Message, Topic
from sqlqueue.stats import counting, search
from tests.factories import MessageFactory, TopicFactory

pytestmark = pytest.mark.django_db
ALIAS, PARTITIONS, PRIORITIES = "default", 3, 2


@pytest.fixture(params=range(2))
def log(request: pytest.FixtureRequest) -> list[tuple[int, str, str, str]]:
    """A log of two topics, and of dead letters: (offset, topic, key, id), highest first."""
    chance, messages = random.Random(request.param), []
    for name, partitions in (("t", PARTITIONS), ("t_dlq", 2), ("other", PARTITIONS)):
        TopicFactory(name=name, partitions=partitions, priorities=PRIORITIES)
    for number in range(300):
        topic, key = chance.choice(["t", "t", "other", "t_dlq"]), f"k{chance.choice([1, 1, 1, 2, 3, 4])}"
        partition = partition_of(key, PARTITIONS) % (2 if topic == "t_dlq" else PARTITIONS)
        priority = int(chance.random() < 0.2)
        columns = {"topic": topic, "partition": partition, "priority": priority}
        messages.append(MessageFactory.build(**columns, partition_key=key, message_id=str(number)))
    Message.objects.bulk_create(messages)
    rows = Message.objects.order_by("-offset").values_list("offset", "topic", "partition_key", "message_id")
    return list(rows)


@pytest.mark.parametrize("at_once", [1, 4, 250])
def test_a_topic_from_its_newest_message(log: list[tuple[int, str, str, str]], monkeypatch: Any, at_once: int) -> None:
    monkeypatch.setattr(counting, "AT_ONCE", at_once)
    for name in ("t", "t_dlq"):
        topic = stored(Log.of(ALIAS), name)
        assert topic
        every = [offset for offset, of, _, _ in log if of == name]
        low, high = every[-10], every[10]
        between = [offset for offset in every if low < offset <= high]
        assert search.newest(Log.of(ALIAS), topic, 1_000) == every
        assert search.newest(Log.of(ALIAS), topic, 7) == every[:7]
        assert search.newest(Log.of(ALIAS), topic, 7, low, high) == between[:7]


@pytest.mark.parametrize(("at_once", "most"), [(2, 5), (5, 3), (14, 100), (1_000, 4)])
def test_a_key_in_steps(log: list[tuple[int, str, str, str]], monkeypatch: Any, at_once: int, most: int) -> None:
    monkeypatch.setattr(search, "SCANNED_AT_ONCE", at_once)
    for name, key in product(("t", "t_dlq"), ("k1", "k2", "k3", "unknown")):
        topic = stored(Log.of(ALIAS), name)
        assert topic
        found, high = [], search.HIGHEST
        for _ in range(1_000):
            scan = search.by_key(Log.of(ALIAS), topic, key, most, 0, high)
            assert len(scan.offsets) <= most
            found += scan.offsets
            if scan.reached is None:
                break
            assert scan.reached - 1 < high, "the search does not get on"
            high = scan.reached - 1
        assert found == [offset for offset, of, its, _ in log if (of, its) == (name, key)], (name, key)


def test_an_id(log: list[tuple[int, str, str, str]]) -> None:
    for offset, name, _, id in log[:20]:
        topic = stored(Log.of(ALIAS), name)
        assert topic
        assert search.by_id(Log.of(ALIAS), topic, id, 5) == [offset]
        assert search.by_id(Log.of(ALIAS), topic, f"{id}x", 5) == []


def test_no_topic_is_made_by_looking_for_it() -> None:
    assert stored(Log.of(ALIAS), "t") is None
    assert not Topic.objects.exists()
