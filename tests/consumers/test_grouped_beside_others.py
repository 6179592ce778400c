"""Handlers that share transactions, beside the other abilities of their consumers."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Permission

from sqlqueue import Batch, NewMessage, Reject, get_batch, publish_many
from sqlqueue.log import status
from sqlqueue.models import Message
from tests.app.models import Effect
from tests.consuming import QUICK, Consuming
from tests.logs import LOG
from tests.processes import wait_until

pytestmark = pytest.mark.once

NOWHERE = 2**31 - 1  # the id of no row


class Handler:
    """Writes an effect for each delivery. 4 fails once, 6 is a dead letter."""

    def __init__(self, consuming: Consuming, **options: Any):
        self.attempts: dict[int, set[int]] = {}
        consuming.consumer("t", self, **{"atomic": True, "commit_every": 10, "backoff": 0, **options})

    __qualname__ = "Handler"

    def __call__(self, delivery: Any) -> None:
        number = delivery.payload["n"]
        self.attempts.setdefault(number, set()).add(delivery.attempt)
        Effect.objects.create(name="seen", value=str(number))
        if number == 4 and delivery.attempt == 1:
            raise ValueError("fails once")
        if number == 6:
            raise Reject("no")


def effects() -> list[int]:
    return sorted(int(value) for value in Effect.objects.values_list("value", flat=True))


def messages(count: int = 25) -> list[NewMessage]:
    return [NewMessage({"n": number}, key=f"k{number % 7}") for number in range(count)]


@pytest.fixture(autouse=True)
def one_partition(consuming: Consuming, settings: Any) -> None:
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1}


@pytest.mark.parametrize(
    "options",
    [
        {"where": {"payload.n": [number for number in range(25) if number % 3 != 2]}},
        {"ordering": "none"},
        {"concurrency_limit": 1},
        {"rate_limit": "1000/s"},
        {"retry_budget": "1000/s"},
        {"commit_every": 10_000},
        {"keep_results": 60, "ordering": "partition"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_each_effect_is_there_once(consuming: Consuming, options: dict[str, Any]) -> None:
    handler = Handler(consuming, **options)
    publish_many("t", messages())
    consuming.start()
    left_out = [number for number in range(25) if "where" in options and number % 3 == 2]
    wanted = [number for number in range(25) if number != 6 and number not in left_out]
    wait_until(lambda: effects() == wanted and Message.objects.filter(topic="t_dlq").exists())
    wait_until(lambda: not status.unacked_streams(LOG, "default", "t"))
    assert handler.attempts == {number: {1, 2} if number == 4 else {1} for number in sorted([*wanted, 6])}


def test_members_of_a_batch_of_work_are_counted_once(consuming: Consuming) -> None:
    Handler(consuming)
    with Batch() as batch:
        for number in range(25):
            batch.publish("t", {"n": number}, key=f"k{number % 7}")
    consuming.drain()
    assert effects() == [number for number in range(25) if number != 6]
    found = get_batch(batch.id)
    assert (found.done, found.failed, found.pending) == (24, 1, 0)


def test_a_constraint_that_is_checked_at_the_commit(consuming: Consuming) -> None:
    """PostgreSQL and SQLite check foreign keys there; the error does not name the message."""
    attempts: dict[int, set[int]] = {}

    @consuming.consumer("t", atomic=True, commit_every=10, backoff=0, max_attempts=2)
    def handle(delivery: Any) -> None:
        attempts.setdefault(delivery.payload, set()).add(delivery.attempt)
        Effect.objects.create(name="seen", value=str(delivery.payload))
        if delivery.payload == 3:
            Permission.objects.create(name="of nothing", codename="x", content_type_id=NOWHERE)

    publish_many("t", range(10))
    consuming.drain()
    assert effects() == [number for number in range(10) if number != 3]
    assert attempts == {number: {1, 2} if number == 3 else {1} for number in range(10)}
    assert Message.objects.get(topic="t_dlq").payload == 3
