"""Suspects are alone in their process, and keep nothing else waiting for long."""

import threading
import time
from typing import Any

import pytest

from sqlqueue import Delivery, NewMessage, publish, publish_many
from sqlqueue.consumers import suspects
from sqlqueue.consumers.suspects import SuspectTurns
from sqlqueue.database.horizon import highest_offset
from sqlqueue.leases.acquire import acquire
from sqlqueue.log import groups
from sqlqueue.models import DeliveryState, Offset, PartitionLease
from tests.consuming import QUICK, Consuming
from tests.processes import wait_until

SUSPECTS = 30


def leave_in_hand(topic: str) -> None:
    """What a process leaves behind that is killed while it has a partition's messages in hand."""
    have_in_hand(topic)
    PartitionLease.objects.filter(topic=topic).update(holder="")


def have_in_hand(topic: str) -> None:
    """Have a partition's messages in hand."""
    horizon = highest_offset("default")
    groups.register("default", "g", topic)
    acquire("default", "killed", "g", topic, [0], priorities=1, lease_duration=3600, horizon=horizon)
    Offset.objects.filter(topic=topic).update(claimed_to=horizon)


@pytest.mark.parametrize("handler", ["short", "longer than a turn"])
def test_others_are_delivered_between_them_and_never_beside_one(
    consuming: Consuming, settings: Any, monkeypatch: pytest.MonkeyPatch, handler: str
) -> None:
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1}
    monkeypatch.setattr(suspects, "TURN", 0.1)
    seconds = 0.02 if handler == "short" else 0.12
    lock = threading.Lock()
    running: list[str] = []
    beside: list[list[str]] = []
    done: list[str] = []

    def handle(delivery: Delivery) -> None:
        with lock:
            running.append(delivery.topic)
            if "suspects" in running:
                beside.append(list(running))
        time.sleep(seconds)
        with lock:
            running.remove(delivery.topic)
            done.append(delivery.topic)
        if delivery.topic == "others":
            publish("others", None)  # there is always more to do

    publish_many("suspects", [NewMessage(n, key=f"k{n}") for n in range(SUSPECTS)])
    leave_in_hand("suspects")
    publish_many("others", range(4))
    consuming.consumer("suspects", handle, group="g")
    consuming.consumer("others", handle, group="g")
    host = consuming.start()
    wait_until(lambda: done.count("suspects") == SUSPECTS, timeout=120)
    host.stop()
    assert {len(together) for together in beside} == {1}
    assert done.index("others") < 15, "everything else has waited until the suspects were done"
    assert done[: done.index("suspects")].count("others") < 50
    wait_until(lambda: not DeliveryState.objects.filter(topic="suspects", acked=False).exists())


def test_no_partition_waits_for_all_those_of_another(consuming: Consuming, settings: Any) -> None:
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1}
    done: list[str] = []
    for topic, count in (("many", SUSPECTS), ("few", 2), ("other", 2)):
        publish_many(topic, [NewMessage(n, key=f"k{n}") for n in range(count)])
        leave_in_hand(topic)
        consuming.consumer(topic, lambda delivery: done.append(delivery.topic), group="g")
    consuming.drain()
    assert sorted(done[:6]) == ["few", "few", "many", "many", "other", "other"]
    assert len(done) == SUSPECTS + 4


def test_a_turn_lasts_as_long_as_the_one_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspects, "TURN", 1.0)
    turns = SuspectTurns()
    assert not turns.of_others(10.0)
    turns.wait(10.0)  # until 12.0 others are in hand
    assert [turns.go_on(moment) for moment in (12.0, 12.9, 13.0)] == [True, True, False]
    assert [turns.of_others(moment) for moment in (15.9, 16.0)] == [True, False]
    assert turns.go_on(20.0)


def test_suspects_that_come_later_have_a_whole_turn() -> None:
    turns = SuspectTurns()
    assert turns.go_on(10.0)
    turns.end()
    assert [turns.go_on(moment) for moment in (100.0, 100.9)] == [True, True]


def test_what_runs_for_long_keeps_its_own_group_waiting_and_no_other(
    consuming: Consuming, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that runs a long handler takes over what another had in hand when it was killed."""
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1}
    monkeypatch.setattr(suspects, "TURN", 0.1)
    gate = consuming.gate()
    done: list[str] = []

    def handle(delivery: Delivery) -> None:
        if delivery.payload == "long":
            gate.wait(60)
        done.append(delivery.topic)
        if delivery.topic == "others" and not gate.is_set():
            publish("others", None)

    for topic in ("long", "others", "suspects"):
        consuming.consumer(topic, handle, group="g", ordering="none")
    publish("long", "long")
    publish_many("suspects", range(5))
    have_in_hand("suspects")
    host = consuming.start()
    wait_until(lambda: host.subscriber.dispatcher.outstanding == 1)
    PartitionLease.objects.filter(topic="suspects").update(holder="")
    wait_until(lambda: any(stream.has_suspects for stream in host.subscriber.ownership.streams()))
    publish("long", "another")
    publish("others", None)
    wait_until(lambda: done.count("others") > 20)
    assert set(done) == {"others"}  # the suspects wait until they are alone, and the group with long work for them
    gate.set()
    wait_until(lambda: done.count("suspects") == 5 and done.count("long") == 2)
    assert done.index("suspects") < len(done) - 1 - done[::-1].index("long")


def test_a_wait_in_vain_ends_with_a_turn_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspects, "TURN", 1.0)
    turns = SuspectTurns()
    assert [turns.wait(moment, [("g", "t")]) for moment in (10.0, 10.9, 11.2)] == [True, True, False]
    assert [turns.of_others(moment) for moment in (12.3, 12.4)] == [True, False]
    assert turns.waits_for(("g", "t"))
    assert not turns.waits_for(("g", "u"))
    turns.end()
    assert not turns.waits_for(("g", "t"))
