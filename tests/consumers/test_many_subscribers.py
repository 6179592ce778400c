"""Of many subscribers of a database few probe the horizon, and who has no news does not hurry."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.db.models import F, Value
from django.db.models.functions import Concat
from django.test.utils import CaptureQueriesContext
from django.utils.timezone import now

from sqlqueue import publish
from sqlqueue.consumers.declare.registry import build
from sqlqueue.consumers.engine import log_end
from sqlqueue.consumers.engine.ownership import WorkingSet
from sqlqueue.consumers.engine.subscriber import Subscriber
from sqlqueue.consumers.handlers.inline import InlinePool
from sqlqueue.database.insert_sql import HORIZON
from sqlqueue.database.server_identity import ServerChanged, ServerIdentity
from sqlqueue.leases import heartbeat
from sqlqueue.models import Offset, PublishGate, SubscriberHeartbeat
from sqlqueue.operations.recover import recover
from tests.consumers.test_pace import counted
from tests.consumers.test_reading import OpenPublish
from tests.logs import LOG

pytestmark = pytest.mark.django_db(transaction=True)
GATED = pytest.mark.database("mariadb", "mysql", "postgresql")

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
    """No subscriber's turn comes."""
    monkeypatch.setattr(log_end.random, "random", lambda: 0.999999)


@contextmanager
def one_of(living: int, topic: str = "t") -> Iterator[Subscriber]:
    """A subscriber whose iterations the test runs, beside others that hold no leases."""
    options = build(topic, {"group": "g"})
    consumers = [replace(options, handler=lambda _: None)]
    hosted = Subscriber(consumers, background_tasks=False, pool=InlinePool)
    hosted.start()
    for number in range(living - 1):
        heartbeat.beat(LOG, f"s{number}", [("g", f"of-{number}")], 3600)
    hosted.run_once()
    try:
        yield hosted
    finally:
        hosted.close()


def publish_behind_a_gap(payload: object) -> int:
    """Publish behind a number that nothing will ever have, so that only the gate can tell; return the offset."""
    with transaction.atomic():
        publish("t", "undone")
        transaction.set_rollback(True)
    return publish("t", payload).offset


def statements_of(act: Callable[[], object]) -> list[str]:
    with CaptureQueriesContext(connection) as queries:
        act()
    return [query["sql"] for query in queries]


def probes(statements: list[str]) -> int:
    return counted(statements, "pg_locks") + counted(statements, "publish_gate", "SKIP LOCKED")


def position() -> int:
    return Offset.objects.get(topic="t", consumer_group="g").position


def shared() -> int:
    """The horizon that others can read."""
    return PublishGate.objects.get(slot=HORIZON).value


def look(hosted: Subscriber, times: int) -> None:
    """Poll so often, whatever the pauses are."""
    for _ in range(times):
        hosted.notify()
        hosted.run_once()


@GATED
@pytest.mark.usefixtures("never")
def test_a_subscriber_goes_by_what_another_one_has_found() -> None:
    with one_of(MANY) as hosted:
        offset = publish_behind_a_gap(1)
        assert probes(statements_of(lambda: look(hosted, 3))) == 0
        assert position() < offset
        other = log_end.Horizon(LOG)
        other.probe(offset)
        other.share()
        assert shared() == offset
        look(hosted, 3)
        assert position() == offset


@GATED
def test_whose_turn_it_is_tells_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_end.random, "random", lambda: (log_end.PROBERS - 0.01) / MANY)
    with one_of(MANY) as hosted:
        offset = publish_behind_a_gap(1)
        assert probes(statements_of(lambda: look(hosted, 3))) == 1
        assert position() == shared() == offset


@GATED
def test_one_of_a_few_probes_for_itself() -> None:
    with one_of(log_end.FEW) as hosted:
        offset = publish_behind_a_gap(1)
        assert probes(statements_of(lambda: look(hosted, 3))) == 1
        assert position() == offset
        assert shared() == 0


@GATED
def test_every_round_has_some_that_probe() -> None:
    """By chance: of 20,000 looks 200 are expected, and fewer than 100 in none of 10 to the 13th runs."""
    horizons = log_end.LogEnd(LOG, None)
    turns = sum(horizons._is_to_probe(MANY) for _ in range(20_000))
    assert 100 < turns < 320


@GATED
def test_who_waits_for_publishers_goes_on_probing(monkeypatch: pytest.MonkeyPatch) -> None:
    chances = iter([0.0])
    monkeypatch.setattr(log_end.random, "random", lambda: next(chances, 0.999999))
    with one_of(MANY) as hosted:
        slow = OpenPublish("slow", key="a")
        offset = publish("t", 1).offset
        assert probes(statements_of(lambda: look(hosted, 3))) == 3
        slow.commit()
        look(hosted, 3)
        assert position() == offset


@GATED
@pytest.mark.parametrize("pause", [0.1, 0.4, 30.0])
def test_it_waits_only_so_long_for_others_that_may_be_dead(pause: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the polls are slow: then others are as slow, and alive. Then it is its turn more often; not at once,
    for others may have waited as long."""
    monkeypatch.setattr(log_end.random, "random", lambda: (log_end.EAGER - 0.01) / MANY)
    of_one = log_end.LogEnd(LOG, ServerIdentity(LOG))
    offset = publish_behind_a_gap(1)
    looks = 0
    while of_one.horizon.value < offset and looks < 1000:
        of_one.look(WorkingSet(), 100.0 + looks * pause, subscribers=MANY)
        looks += 1
    assert looks - 1 == pytest.approx(log_end.LONGEST_WAIT / min(pause, log_end.LONGEST_ROUND), abs=1.5)
    assert shared() == offset


@GATED
def test_a_process_that_has_slept_through_a_restore_begins_anew() -> None:
    """Its horizon is of a log that is no more: what another one publishes now may be below it, and not committed."""
    with one_of(MANY) as hosted:
        for number in range(3):
            offset = publish("t", number).offset
        other = log_end.Horizon(LOG)
        other.probe(offset)
        other.share()
        look(hosted, 3)
        assert hosted.reader.log_end.horizon.value == offset
        SubscriberHeartbeat.objects.update(expires_at=now() - timedelta(hours=1))  # they sleep
        recover(LOG)
        with pytest.raises(ServerChanged):
            look(hosted, 1)
        hosted.start_over()
        assert hosted.reader.log_end.horizon.value == 0


@pytest.mark.database("sqlite")
@pytest.mark.usefixtures("never")
def test_where_the_logs_end_is_the_horizon_nobody_waits_or_shares() -> None:
    with one_of(MANY) as hosted:
        offset = publish("t", 1).offset
        look(hosted, 3)
        assert position() == offset
        assert shared() == 0


def test_spark_streams_which_share_nothing_do_not_count() -> None:
    with one_of(MANY) as hosted:
        others = SubscriberHeartbeat.objects.exclude(subscriber=hosted.name)
        others.update(subscriber=Concat(Value("spark:"), F("subscriber")))
        hosted.balance()
        assert hosted.ownership.balancer.living == 1


@GATED
@pytest.mark.usefixtures("never")
def test_news_of_others_do_not_hurry_it() -> None:
    with one_of(MANY) as hosted:
        look(hosted, 1)
        before = hosted._pause
        publish("other", 1)
        hosted.notify()
        assert hosted.run_once() >= min(2 * before, hosted._pause) > 0
        publish("t", 1)
        look(hosted, 1)
        assert hosted._pause < before
