"""A consumer that was stopped past its lease, and goes on, changes nothing that its successor did."""

from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from sqlqueue import publish
from sqlqueue.models import DeliveryState, Offset
from tests.consumer_processes import GROUP, QUICK, Consumers, effects, heartbeats, holders, in_flight
from tests.processes import ManageCommand, wait_until
from tests.progress import dead_letter_offsets, keys_of_partitions, settled, wait_until_settled
from tests.subscribers import Handled, RunningSubscriber, consumer
from tests.transactions import OpenTransaction

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def consumer_options(settings: Settings) -> dict[str, Any]:
    """Leases that a frozen consumer soon loses."""
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 2, "LEASE_DURATION": 5}
    return settings.SQLQUEUE


def state_of(topic: str) -> list[Any]:
    """Return all that a settle could change."""
    offsets = Offset.objects.filter(topic=topic).order_by("partition")
    states = DeliveryState.objects.filter(topic=topic).order_by("message_offset")
    return [
        list(offsets.values_list("partition", "position", "offset_acked", "claimed_to", "fencing_token")),
        list(states.values_list("message_offset", "acked", "in_flight", "retry_count", "last_error")),
        dead_letter_offsets(topic, GROUP),
    ]


def freeze_when_only_in_flight(zombie: ManageCommand, topic: str, names: set[str]) -> None:
    """Freeze it when all but these is settled: in the midst of a transaction it would hold its locks until it thaws."""
    ((subscriber, pid),) = heartbeats().items()
    assert pid == zombie.pid
    wait_until(lambda: in_flight(topic, subscriber) == names, message=lambda: f"{in_flight(topic, subscriber)}")
    zombie.freeze()


def test_what_a_zombie_settles_changes_nothing(consumers: Consumers, tmp_path: Path) -> None:
    go = tmp_path / "go"
    for number in range(6):
        consumers.publish("steady", f"quick-{number}")
    consumers.publish("steady", "slow", wait_for=str(go), then="reject")
    zombie = consumers.start("steady", processes=0)
    wait_until(lambda: consumers.noted("begin")["slow", 1] and len(consumers.noted("end")) == 6)
    freeze_when_only_in_flight(zombie, "steady", {"slow"})

    successor = consumers.start("steady", processes=0)
    wait_until(lambda: effects()["slow", 2], message="no process took over")
    wait_until_settled("steady", GROUP)
    before = state_of("steady")
    assert not before[-1]

    go.touch()
    zombie.thaw()
    wait_until(lambda: consumers.noted("end")["slow", 1], message="the zombie's handler has not gone on")
    zombie.wait_for_line("event=lease_lost .*another process has it")
    wait_until(lambda: len(holders("steady")) == 2, message="the zombie has not become a consumer again")
    after = state_of("steady")
    assert after[1:] == before[1:], "the zombie settled what was its successor's"
    assert [row[1:4] for row in after[0]] == [row[1:4] for row in before[0]]

    rounds = {f"round-{number}" for number in range(8)}
    for name in sorted(rounds):
        consumers.publish("steady", name)
    wait_until_settled("steady", GROUP)
    for command in (zombie, successor):
        command.terminate()
        assert command.wait() == 0, command.output
    handled = effects()
    assert {name for name, _ in handled} == {"slow", *(f"quick-{number}" for number in range(6)), *rounds}
    assert set(handled.values()) == {1}, "a message had the same attempt twice"
    assert len(handled) == 6 + 2 + len(rounds), "only what was in flight is handled twice"
    assert not dead_letter_offsets("steady", GROUP)


# A frozen writer of SQLite keeps the whole database locked: no process could take over.
@pytest.mark.database("mariadb", "mysql", "postgresql")
@pytest.mark.parametrize("topic", ["atomic", "batches"])
def test_what_a_zombie_writes_atomically_is_rolled_back(consumers: Consumers, tmp_path: Path, topic: str) -> None:
    go = tmp_path / "go"
    consumers.publish(topic, "slow", wait_for=str(go))
    consumers.publish(topic, "quick")
    zombie = consumers.start(topic, processes=0)
    wait_until(lambda: consumers.noted("begin")["slow", 1])
    freeze_when_only_in_flight(zombie, topic, {"slow", "quick"} if topic == "batches" else {"slow"})

    consumers.start(topic, processes=0)
    wait_until(lambda: effects()["slow", 2], message="no process took over")
    wait_until_settled(topic, GROUP)

    go.touch()
    zombie.thaw()
    wait_until(lambda: consumers.noted("end")["slow", 1], message="the zombie's handler has not gone on")
    zombie.wait_for_line("event=lease_lost")
    zombie.terminate()
    assert zombie.wait() == 0, zombie.output
    assert settled(topic, GROUP)
    handled = effects()
    assert sorted(name for name, _ in handled) == ["quick", "slow"], "an effect was committed twice"
    assert handled["slow", 2] == 1
    assert not dead_letter_offsets(topic, GROUP)


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_a_consumer_that_fell_silent_in_its_commit_holds_up_its_own_partition_only(settings: Settings) -> None:
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 3}
    handled = Handled()
    for key in keys_of_partitions(3):
        publish("silent", {}, key=key, id=f"before {key}")
    with RunningSubscriber(consumer("silent", handled)):
        wait_until_settled("silent", GROUP)
    with OpenTransaction() as silent:
        stuck = Offset.objects.get(topic="silent", partition=1).pk
        silent.do(lambda: Offset.objects.select_for_update().get(pk=stuck))
        with RunningSubscriber(consumer("silent", handled)) as survivor:
            for key in keys_of_partitions(3):
                publish("silent", {}, key=key, id=f"after {key}")
            wait_until(lambda: len(handled.counts) == 5, 30, message="the survivor waits for the silent one")
            assert survivor.holding() == {0, 2}
            silent.rollback()
            wait_until(lambda: len(handled.counts) == 6, message="the partition is never taken over")
            wait_until_settled("silent", GROUP)
    assert set(handled.counts.values()) == {1}
