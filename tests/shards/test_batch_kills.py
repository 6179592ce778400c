"""Batches over two servers through kill -9 of processes and of a server: each member is counted once, each callback is
published once."""

import signal
from collections import Counter
from typing import Any

import pytest
from django.db import connections, transaction

from sqlqueue import Batch, BatchStatus, NewMessage, get_batch
from sqlqueue.core.shards import shard_of
from sqlqueue.log.topics import forget_topics
from sqlqueue.models import BatchProgress, Message, RelayedMessage
from tests.consumer_processes import QUICK, Consumers
from tests.processes import wait_until
from tests.servers.private import PrivateServer
from tests.shards.aliases import SHARDS, A, B
from tests.soak.system import descendants, signal_if_there

pytestmark = pytest.mark.long("mariadb", "mysql", "postgresql")

KEYS = {shard: [f"{shard}{n}" for n in range(100) if shard_of(f"{shard}{n}", "ab") == shard][:20] for shard in "ab"}
CALLBACKS = {f"on_{when}": ("called", when) for when in ("finish", "success", "failure")}
FIRST, KILLS = 60, 3  # members that add others; of each way to publish them a third


@pytest.fixture
def consumer_options(settings: Any) -> dict[str, Any]:
    settings.SQLQUEUE = QUICK | {"SHARDS": SHARDS, "LEASE_DURATION": 8}
    return settings.SQLQUEUE


def callbacks() -> Counter[str]:
    """Count the callbacks in the logs of both shards."""
    rows = (Message.objects.using(alias).filter(topic="called") for alias in (A, B))
    return Counter(payload for some in rows for payload in some.values_list("payload", flat=True))


def counted(batch: Batch) -> tuple[int, int]:
    """Return how many members are counted as acked and dead, on both shards."""
    found = [
        pair
        for alias in (A, B)
        for pair in BatchProgress.objects.using(alias).filter(batch=batch.id).values_list("acked", "dead")
    ]
    return sum(acked for acked, _ in found), sum(dead for _, dead in found)


def status(batch: Batch) -> BatchStatus:
    found = get_batch(batch.id)
    assert found is not None
    return found


def members(consumers: Consumers, prefix: str) -> list[NewMessage]:
    """Return members that fail at first, now and then, and add one on each shard."""
    found = []
    for number in range(FIRST // 3):
        payload: dict[str, Any] = {"notes": str(consumers.notes), "sleep": 0.01}
        payload["add"] = [KEYS[shard][number % 20] for shard in "ab"]
        payload |= {"then": "fail"} if number % 7 == 3 else {}
        key = KEYS["ab"[number % 2]][number % 20]
        found.append(NewMessage(payload, key=key, id=f"{prefix}{number}"))
    return found


def filled(consumers: Consumers) -> Batch:
    """Publish a batch: one by one, many at once, and in a transaction on a, which relays those of b."""
    with Batch(**CALLBACKS) as batch:
        for one in members(consumers, "single"):
            batch.publish("growing", one.payload, key=one.key, id=one.id)
        batch.publish_many("growing", members(consumers, "many"))
        with transaction.atomic(using=A):
            batch.publish_many("growing", members(consumers, "relayed"))
    return batch


@pytest.mark.long
@pytest.mark.timeout(400)
def test_kills_of_processes_and_of_a_server_leave_the_counts_right(
    second_server: PrivateServer | None, consumers: Consumers
) -> None:
    batch = filled(consumers)
    running = consumers.start("growing", "steady")
    for kill in range(1, KILLS + 1):
        wait_until(
            lambda: sum(counted(batch)) >= 3 * FIRST * kill // (KILLS + 2),  # noqa: B023
            timeout=180,
            message=lambda: running.output[-3000:],  # noqa: B023
        )
        if kill == 2 and second_server is not None:
            second_server.kill()
            connections[B].close()
            second_server.start()
        elif kill == 3:
            running.kill_all()
            running = consumers.start("growing", "steady")
        else:
            for pid in descendants(running.pid):
                signal_if_there(pid, signal.SIGKILL)  # the command starts others
    wait_until(
        lambda: status(batch).state == "succeeded",
        timeout=180,
        message=lambda: f"{status(batch)} {running.output[-3000:]}",
    )
    wait_until(lambda: callbacks() == {"finish": 1, "success": 1})  # one of them goes by the relay
    running.terminate()
    assert running.wait() == 0
    assert counted(batch) == (3 * FIRST, 0)
    assert (status(batch).total, status(batch).done) == (3 * FIRST, 3 * FIRST)
    assert callbacks() == {"finish": 1, "success": 1}


@pytest.mark.database("mariadb", "postgresql")
@pytest.mark.timeout(400)
def test_a_batch_with_members_on_a_shard_that_is_down_waits_for_it_and_others_do_not(
    second_server: PrivateServer, consumers: Consumers
) -> None:
    notes = {"notes": str(consumers.notes)}
    with Batch(**CALLBACKS) as both:
        both.publish_many("steady", [NewMessage(notes, key=KEYS[shard][0], id=f"both-{shard}") for shard in "ab"])
    second_server.kill()
    connections[B].close()
    forget_topics()  # as in a process that starts now
    with transaction.atomic(using=A), Batch(**CALLBACKS) as relayed:
        for shard in "ab":
            relayed.publish("steady", notes, key=KEYS[shard][0], id=f"relayed-{shard}")
    with Batch(**CALLBACKS) as only_a:
        only_a.publish("steady", notes, key=KEYS["a"][0], id="only-a")
    running = consumers.start("steady")
    wait_until(lambda: status(only_a).state == "succeeded", message=lambda: running.output)
    found = status(both)
    assert (found.state, found.unknown_shards, found.done) == ("running", ("b",), 1)
    assert callbacks_of_a() == {"finish": 1, "success": 1}
    second_server.start()
    connections[B].close()
    for batch in (both, relayed):
        wait_until(lambda: status(batch).state == "succeeded")  # noqa: B023
        assert status(batch).done == 2
    assert not RelayedMessage.objects.using(A).filter(topic="steady").exists()
    wait_until(
        lambda: callbacks() == {"finish": 3, "success": 3},
        message=lambda: f"{callbacks()} {RelayedMessage.objects.using(A).values()} {running.output[-9000:]}",
    )
    running.terminate()
    assert running.wait() == 0


def callbacks_of_a() -> Counter[str]:
    """Those that are on a, or wait there for their way to b."""
    arrived = Message.objects.using(A).filter(topic="called").values_list("payload", flat=True)
    waiting = RelayedMessage.objects.using(A).filter(topic="called").values_list("payload", flat=True)
    return Counter([*arrived, *(payload.strip('"') for payload in waiting)])
