"""kill -9 at any moment: members are counted once, and each callback is published once."""

import os
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from django.db import transaction

from sqlqueue import Batch, NewMessage
from sqlqueue.contrib.batches.models import Batch as BatchRow
from sqlqueue.models import Message
from tests.consumer_processes import Consumers, heartbeats, holders, wait_for_shares
from tests.consuming import Consuming
from tests.contrib.batches.following import counted, figures, register, standing
from tests.processes import wait_until

MEMBERS, KILLS = 120, 3


def callbacks() -> Counter[str]:
    return Counter(Message.objects.filter(topic="called").values_list("payload", flat=True))


def fill(consumers: Consumers, topic: str, **todo: Any) -> Batch:
    """Publish a batch of members, some of which fail at first, some for good."""
    payload = {"notes": str(consumers.notes), **todo}
    with Batch(
        on_finish=("called", "finish"), on_success=("called", "success"), on_failure=("called", "failure")
    ) as batch:
        batch.publish_many(
            topic,
            [
                NewMessage({**payload, **({"then": "fail"} if n % 10 == 3 else {})}, key=f"k{n % 17}", id=f"m{n}")
                for n in range(MEMBERS)
            ],
        )
    return batch


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "topic",
    [
        "steady",
        pytest.param("atomic", marks=pytest.mark.database("mariadb", "mysql", "postgresql")),
        pytest.param("batches", marks=pytest.mark.database("mariadb", "mysql", "postgresql")),
    ],
)
def test_counts_are_right_through_kills(consumers: Consumers, topic: str) -> None:
    command = consumers.start(topic, processes=2)
    wait_for_shares(topic, 2)
    batch = fill(consumers, topic, sleep=0.005)
    for kill in range(1, KILLS + 1):
        wait_until(lambda: sum(counted(batch.id)) >= MEMBERS * kill // (KILLS + 1))  # noqa: B023
        pid, *_ = wait_until(lambda: sorted(heartbeats().values()))
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: pid not in heartbeats().values())  # noqa: B023
    wait_until(lambda: standing(batch.id).state == "succeeded", message=lambda: str(standing(batch.id)))
    command.terminate()
    assert command.wait() == 0, command.output
    assert counted(batch.id) == (MEMBERS, 0)
    assert callbacks() == {"finish": 1, "success": 1}


@pytest.mark.django_db(transaction=True)
def test_the_steps_of_a_chain_are_published_once_through_kills(consumers: Consumers) -> None:
    """A process is killed whenever a step was begun, and another one goes on with it."""
    command = consumers.start("steady", processes=2)
    wait_for_shares("steady", 2)

    def step(number: int) -> list[Any]:
        payload = {"notes": str(consumers.notes), "sleep": 0.02, "step": number}
        return [("steady", payload, f"k{key}") for key in range(8)]

    with Batch(
        then=[step(2), step(3), step(4)], on_finish=("called", "finish"), on_success=("called", "success")
    ) as it:
        for topic, payload, key in step(1):
            it.publish(topic, payload, key=key)
    for number in (2, 3, 4):
        published = Message.objects.filter(topic="steady", payload__step=number)
        wait_until(published.exists)
        pid, *_ = wait_until(lambda: sorted(heartbeats().values()))
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: pid not in heartbeats().values())  # noqa: B023
    wait_until(lambda: standing(it.id).state == "succeeded", message=lambda: str(standing(it.id)))
    command.terminate()
    assert command.wait() == 0, command.output
    payloads = Message.objects.filter(topic="steady").values_list("payload", flat=True)
    assert Counter(payload["step"] for payload in payloads) == {1: 8, 2: 8, 3: 8, 4: 8}
    assert (figures(it.id), callbacks()) == ((32, 32, 0), {"finish": 1, "success": 1})


@pytest.mark.django_db(transaction=True)
def test_a_handler_that_is_killed_in_the_block_of_a_batch_publishes_it_once(
    consumers: Consumers, tmp_path: Path
) -> None:
    command = consumers.start("fanning", "steady", "called")
    go = tmp_path / "go"
    consumers.publish("fanning", "fan", wait_for=str(go))
    wait_until(lambda: bool(consumers.noted("begin")))
    (pid,) = heartbeats().values()
    os.kill(pid, signal.SIGKILL)
    go.touch()
    wait_until(lambda: Message.objects.filter(topic="called").exists())
    command.terminate()
    assert command.wait() == 0, command.output
    published = Message.objects.exclude(topic="fanning").values_list("topic", "partition_key")
    assert sorted(published) == [("called", ""), ("steady", "a"), ("steady", "b")]
    assert [(batch.state, batch.done) for batch in map(standing, BatchRow.objects.values_list("id", flat=True))] == [
        ("succeeded", 2)
    ]


@pytest.mark.database("mariadb", "mysql", "postgresql")
@pytest.mark.django_db(transaction=True)
def test_a_process_that_is_killed_between_the_settle_and_the_end_leaves_that_to_the_next(consumers: Consumers) -> None:
    """Its check waits for the batch's row, which is locked here; when it is killed, everything is settled."""
    batch = fill(consumers, "steady")
    with transaction.atomic():
        BatchRow.objects.select_for_update().get(id=batch.id)
        command = consumers.start("steady", processes=0)
        wait_until(lambda: sum(counted(batch.id)) == MEMBERS)
        command.kill()
        command.wait()
        assert callbacks() == {}
    assert standing(batch.id).finished_at is None
    command = consumers.start("steady", processes=0)
    wait_until(lambda: callbacks() == {"finish": 1, "success": 1})
    command.terminate()
    assert command.wait() == 0, command.output


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_two_owners_that_settle_the_last_two_members_end_it_once(consuming: Consuming, called: list[Any]) -> None:
    """Four members meet in the handlers of two subscribers, and are settled at the same time; so are the checks behind
    that, which find everything settled and meet at the batch's row."""
    meeting = threading.Barrier(4, timeout=60)
    register(consuming, "sync", lambda delivery: meeting.wait() if delivery.payload else None)
    hosts = [consuming.start("default", threads=2) for _ in range(2)]
    keys = {crc32(key.encode()) % 4: key for key in map(str, range(20))}.values()
    wait_until(lambda: sorted(Counter(holders("t")).values()) == [2, 2])
    batches = []
    for _ in range(5):
        with Batch(on_finish=("called", "finish")) as batch:
            batch.publish_many("t", [NewMessage(1, key=key) for key in keys])
        wait_until(lambda: standing(batch.id).state == "succeeded")
        batches.append(figures(batch.id))
    for host in hosts:
        host.stop()
    assert batches == [(4, 4, 0)] * 5
    assert callbacks() == {"finish": 5}
