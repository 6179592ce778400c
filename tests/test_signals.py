"""Signals announce what has happened; a receiver that fails changes nothing of it."""

import logging
from collections.abc import Iterator

import pytest

from sqlqueue import Reject, Retry, publish, signals
from sqlqueue.models import Message, Offset
from tests.consuming import Consuming, states

NAMES = (
    "message_published",
    "delivery_settled",
    "delivery_failed",
    "dead_lettered",
    "lease_acquired",
    "lease_released",
    "lease_lost",
    "subscriber_started",
    "subscriber_stopped",
)


@pytest.fixture
def heard() -> Iterator[list[tuple[str, dict]]]:
    """Every fact that is announced, with its name."""
    facts: list[tuple[str, dict]] = []
    receivers = {}
    for name in NAMES:

        def hear(*, signal, sender, name: str = name, **given) -> None:
            facts.append((name, given))

        receivers[name] = hear
        getattr(signals, name).connect(hear)
    yield facts
    for name, receiver in receivers.items():
        getattr(signals, name).disconnect(receiver)


def facts_of(heard: list[tuple[str, dict]], name: str) -> list[dict]:
    return [given for each, given in heard if each == name]


def test_the_life_of_a_subscriber(consuming: Consuming, heard: list) -> None:
    consuming.consumer("t", lambda delivery: None, group="g")
    publish("t", 1)
    subscriber = consuming.drain()
    names = [name for name, _ in heard]
    assert names[0] == "message_published"
    assert names[1:3] == ["subscriber_started", "lease_acquired"]
    assert names[-2:] == ["lease_released", "subscriber_stopped"]
    started = {"subscriber": subscriber.name, "subscriptions": [("g", "t")], "database": ""}
    assert facts_of(heard, "subscriber_started") == [started]
    lease = {"subscriber": subscriber.name, "group": "g", "topic": "t", "partitions": [0, 1, 2, 3], "database": ""}
    assert facts_of(heard, "lease_acquired") == facts_of(heard, "lease_released") == [lease]


def test_the_outcomes_of_deliveries(consuming: Consuming, heard: list) -> None:
    @consuming.consumer("t", max_attempts=2, backoff=0)
    def handle(delivery) -> None:
        if delivery.payload == "reject":
            raise Reject("no")
        if delivery.payload == "retry" and delivery.attempt == 1:
            raise Retry("once")

    offsets = {name: publish("t", name).offset for name in ("good", "retry", "reject")}
    consuming.drain()
    settled = {(f["offset"], f["attempt"]): (f["outcome"], f["error"]) for f in facts_of(heard, "delivery_settled")}
    assert settled == {
        (offsets["good"], 1): ("acked", ""),
        (offsets["retry"], 1): ("retried", "once"),
        (offsets["retry"], 2): ("acked", ""),
        (offsets["reject"], 1): ("dead", "no"),
    }
    assert all(fact["seconds"] >= 0 for fact in facts_of(heard, "delivery_settled"))
    assert [fact["offset"] for fact in facts_of(heard, "delivery_failed")] == [offsets["retry"]]
    (dead,) = facts_of(heard, "dead_lettered")
    assert (dead["offset"], dead["attempt"], dead["error"]) == (offsets["reject"], 1, "no")


def test_they_are_announced_when_they_are_true(consuming: Consuming) -> None:
    seen: list[tuple[int, int]] = []

    def look(*, offset: int, **_: object) -> None:
        seen.append((offset, Offset.objects.filter(offset_acked__gte=offset).count()))

    consuming.consumer("t", lambda delivery: None)
    signals.delivery_settled.connect(look)
    try:
        offset = publish("t", 1).offset
        consuming.drain()
    finally:
        signals.delivery_settled.disconnect(look)
    assert seen == [(offset, 1)]


def test_a_receiver_that_raises_is_logged_and_changes_nothing(
    consuming: Consuming, caplog: pytest.LogCaptureFixture, heard: list
) -> None:
    def broken(**_: object) -> None:
        raise RuntimeError("the receiver is broken")

    @consuming.consumer("t", max_attempts=2, backoff=0)
    def handle(delivery) -> None:
        if delivery.payload == "bad":
            raise ValueError

    for name in NAMES:
        getattr(signals, name).connect(broken)
    try:
        with caplog.at_level(logging.ERROR, "sqlqueue"):
            assert publish("t", "good").created
            publish("t", "bad")
            consuming.drain()
    finally:
        for name in NAMES:
            getattr(signals, name).disconnect(broken)
    assert states("t") == []
    assert Message.objects.filter(topic="t_dlq").count() == 1
    assert {name for name, _ in heard} >= set(NAMES) - {"lease_lost"}
    assert any("the receiver is broken" in record.getMessage() for record in caplog.records)
