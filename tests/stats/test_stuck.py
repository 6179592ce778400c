"""What is stuck, and what is not: by a group's own settles, and the limits of its handlers."""

import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from sqlqueue import Delivery, NewMessage, publish, publish_many
from sqlqueue.models import DeliveryState, Message, Offset, SubscriberHeartbeat
from sqlqueue.stats import processes, stuck
from sqlqueue.stats.survey import survey, survey_with_partitions
from tests.consuming import QUICK, Consuming
from tests.logs import LOG
from tests.processes import wait_until

LONG_AGO = timedelta(minutes=10)


@pytest.fixture(autouse=True)
def beats_often(consuming: Consuming, settings: Any) -> None:
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1, "HEARTBEAT_INTERVAL": 0.2}


def survey_says(group: str = "default") -> set[str]:
    seen = survey(LOG).group("t", group)
    assert seen is not None
    return {one.why for one in seen.stuck}


def partitions_say(group: str = "default") -> set[str]:
    return {one.stuck for one in survey_with_partitions(LOG, "t", group)[1]} - {""}


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Call stuck after a second what is called so after a minute."""
    for module in (processes, stuck):
        monkeypatch.setattr(module, "STANDS_STILL", 1.0)


def test_a_group_is_not_stuck_while_its_handlers_are_within_their_limit(consuming: Consuming) -> None:
    gate, started = consuming.gate(), threading.Event()

    @consuming.consumer("t", visibility_timeout=600, ordering="none")
    def handle(delivery: Delivery) -> None:
        if delivery.payload == 0:
            started.set()
            gate.wait()

    def become_old() -> None:
        Message.objects.update(created_at=timezone.now() - LONG_AGO)
        Offset.objects.update(updated_at=timezone.now() - LONG_AGO)

    publish("t", 0, key="a")
    consuming.start(threads=2)
    assert started.wait(30)
    runs = SubscriberHeartbeat.objects.filter(runs_until__isnull=False)
    wait_until(runs.filter(runs_until__gt=timezone.now() + timedelta(minutes=9)).exists)
    become_old()
    assert (survey_says(), partitions_say()) == (set(), set())
    publish_many("t", [NewMessage(number, key="a") for number in range(1, 20)])
    wait_until(DeliveryState.objects.exclude(in_flight=0).exists)  # what runs holds the watermark with a row
    become_old()
    assert (survey_says(), partitions_say()) == (set(), set())
    runs.update(runs_until=timezone.now() - LONG_AGO)  # until the next heartbeat: as if it hung
    assert {*survey_says(), *partitions_say()} <= {"standing"}
    gate.set()
    wait_until(lambda: not runs.exists())


@pytest.mark.usefixtures("soon")
def test_a_group_is_stuck_whose_own_messages_never_start(consuming: Consuming) -> None:
    """Nine groups have long handlers, so `hourly` gets no thread; what is meant for another group of its topic goes
    by."""
    gate = consuming.gate()
    for number in range(9):
        consuming.consumer(f"long{number}", lambda delivery: gate.wait(), visibility_timeout=600)
        publish(f"long{number}", 1)
    for group in ("hourly", "fast"):
        consuming.consumer("t", lambda delivery: None, group=group)
    consuming.start(threads=4)
    runs = SubscriberHeartbeat.objects.filter(runs_until__isnull=False)
    wait_until(lambda: runs.count() == 8)
    publish("t", "hourly", group="hourly")

    def told() -> bool:
        publish("t", "fast", group="fast")
        return survey_says("hourly") == partitions_say("hourly") == {"standing"}

    wait_until(told)
    assert not runs.filter(consumer_group="hourly").exists()
    gate.set()
    wait_until(lambda: not survey_says("hourly"))


@pytest.mark.usefixtures("soon")
def test_a_group_that_settles_is_not_stuck_whatever_waits_behind_it(consuming: Consuming) -> None:
    handled: list[object] = []

    def handle(delivery: Delivery) -> None:
        time.sleep(0.1)
        handled.append(delivery.payload)

    consuming.consumer("t", handle)
    publish_many("t", [NewMessage(number, key="a") for number in range(30)])
    Message.objects.update(created_at=timezone.now() - LONG_AGO)
    consuming.start()
    wait_until(lambda: handled)
    while len(handled) < 30:
        assert (survey_says(), partitions_say()) == (set(), set())
