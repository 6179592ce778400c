"""Of many subscribers of a database few probe the horizon, and who has no news does not hurry."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from sqlqueue import publish
from sqlqueue.consumers import reader
from sqlqueue.consumers.pools import InlinePool
from sqlqueue.consumers.registry import Consumer, build
from sqlqueue.consumers.subscriber import Subscriber
from sqlqueue.leases import heartbeat
from sqlqueue.models import Offset, SharedHorizon
from tests.consumers.test_pace import counted
from tests.consumers.test_reading import OpenPublish

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database("mariadb", "mysql", "postgresql")]

MANY = 200


@pytest.fixture(autouse=True)
def quiet(settings: object) -> None:
    settings.SQLQUEUE = {
        "TOPICS": {"t": {"partitions": 1}, "other": {"partitions": 1}},
        "WAKE": False,
        "LEASE_DURATION": 3600,
        "BALANCE_INTERVAL": 1800,
    }


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is nobody's turn."""
    monkeypatch.setattr(reader.random, "random", lambda: 0.999999)


@contextmanager
def one_of(living: int, topic: str = "t") -> Iterator[Subscriber]:
    """A subscriber whose iterations the test runs, beside others that hold no leases."""
    options = build(topic, {"group": "g"})
    consumers = [Consumer(topic=topic, handler=lambda _: None, **options)]
    hosted = Subscriber(consumers, background_tasks=False, pool=InlinePool)
    hosted.start()
    for number in range(living - 1):
        heartbeat.beat("default", f"s{number}", [("g", f"of-{number}")], 3600)
    hosted.run_once()
    try:
        yield hosted
    finally:
        hosted.close()


def statements_of(act: Callable[[], object]) -> list[str]:
    with CaptureQueriesContext(connection) as queries:
        act()
    return [query["sql"] for query in queries]


def probes(statements: list[str]) -> int:
    return counted(statements, "pg_locks") + counted(statements, "publish_gate", "SKIP LOCKED")


def position() -> int:
    return Offset.objects.get(topic="t", consumer_group="g").position


def look(hosted: Subscriber, times: int) -> None:
    """Poll so often, whatever the pauses are."""
    for _ in range(times):
        hosted.loop.notify()
        hosted.run_once()


@pytest.mark.usefixtures("never")
def test_a_subscriber_goes_by_what_another_one_has_found() -> None:
    with one_of(MANY) as hosted:
        offset = publish("t", 1).offset
        assert probes(statements_of(lambda: look(hosted, 3))) == 0
        assert position() < offset
        other = reader.Horizon("default")
        other.probe(offset)
        other.share()
        assert SharedHorizon.objects.get().value == offset
        look(hosted, 3)
        assert position() == offset


def test_whose_turn_it_is_tells_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader.random, "random", lambda: (reader.PROBERS - 0.01) / MANY)
    with one_of(MANY) as hosted:
        offset = publish("t", 1).offset
        assert probes(statements_of(lambda: look(hosted, 3))) == 1
        assert position() == SharedHorizon.objects.get().value == offset


def test_one_of_a_few_probes_for_itself() -> None:
    with one_of(reader.FEW) as hosted:
        offset = publish("t", 1).offset
        assert probes(statements_of(lambda: look(hosted, 3))) == 1
        assert position() == offset
        assert not SharedHorizon.objects.exists()


def test_every_round_has_some_that_probe() -> None:
    """By chance: of 20,000 looks 200 are expected, and fewer than 100 in none of 10 to the 13th runs."""
    horizons = reader.Reader("default", None)
    turns = sum(horizons._is_to_probe(MANY) for _ in range(20_000))
    assert 100 < turns < 320


def test_who_waits_for_publishers_goes_on_probing(monkeypatch: pytest.MonkeyPatch) -> None:
    chances = iter([0.0])
    monkeypatch.setattr(reader.random, "random", lambda: next(chances, 0.999999))
    with one_of(MANY) as hosted:
        slow = OpenPublish("slow", key="a")
        offset = publish("t", 1).offset
        assert probes(statements_of(lambda: look(hosted, 3))) == 3
        slow.commit()
        look(hosted, 3)
        assert position() == offset


@pytest.mark.usefixtures("never")
def test_news_of_others_do_not_hurry_it() -> None:
    with one_of(MANY) as hosted:
        look(hosted, 1)
        before = hosted.loop._pause
        publish("other", 1)
        hosted.loop.notify()
        assert hosted.run_once() >= min(2 * before, hosted.loop._pause) > 0
        publish("t", 1)
        look(hosted, 1)
        assert hosted.loop._pause < before
