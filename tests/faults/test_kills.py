"""However a consumer process ends: nothing is lost, attempts are counted, and only what was in flight comes again."""

import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction

from sqlqueue.consumers.process.signals import ONE_REQUEST
from sqlqueue.core.partition.waiting import MOST_DEATHS
from sqlqueue.models import Message, PartitionLease, SubscriberHeartbeat, dead_letter_topic
from tests.consumer_processes import (
    GROUP,
    Consumers,
    effects,
    heartbeats,
    holders,
    in_flight,
    in_flight_at_last,
    runs,
    wait_for_shares,
)
from tests.processes import ManageCommand, wait_until
from tests.progress import dead_letter_offsets, settled, wait_until_settled

pytestmark = pytest.mark.django_db(transaction=True)

KILLS = 3
TRIES = 20


def publish_round(consumers: Consumers, topic: str) -> set[str]:
    """Publish a few more messages and wait until they are settled; return their ids."""
    names = {f"round-{number}" for number in range(12)}
    for name in sorted(names):
        consumers.publish(topic, name)
    wait_until_settled(topic, GROUP)
    return names


def end(command: ManageCommand, status: int = 0) -> None:
    """End consumers gracefully."""
    command.terminate()
    assert command.wait() == status, command.output


def stop_at_work(consumers: Consumers, topic: str, victim: str, pid: int, name: str) -> tuple[set[str], set[str]]:
    """Publish until a subscriber has been stopped (SIGSTOP) at work; return all ids, and those in flight."""
    published: set[str] = set()
    for attempt in range(TRIES):
        names = {f"{name}-{attempt}-{number}" for number in range(40)}
        with transaction.atomic():  # all at once, and for longer each time: whatever else the machine does
            for message in sorted(names):
                consumers.publish(topic, message, sleep=0.02 * (attempt + 1))
        published |= names
        wait_until(lambda: in_flight(topic, victim) or settled(topic, GROUP))
        os.kill(pid, signal.SIGSTOP)
        if met := in_flight_at_last(topic, victim):
            return published, met
        os.kill(pid, signal.SIGCONT)
    raise AssertionError(f"{victim} was never met at work in {TRIES} rounds of 40 messages")


@pytest.mark.parametrize(
    "topic",
    [
        "steady",
        pytest.param("atomic", marks=pytest.mark.database("mariadb", "mysql", "postgresql")),
        pytest.param("batches", marks=pytest.mark.database("mariadb", "mysql", "postgresql")),
        pytest.param("grouped", marks=pytest.mark.database("mariadb", "mysql", "postgresql")),
    ],
)
def test_killed_consumers_lose_nothing_and_only_what_was_in_flight_comes_again(
    consumers: Consumers, topic: str
) -> None:
    command = consumers.start(topic, processes=2, threads=2)
    published: set[str] = set()
    charged: Counter[str] = Counter()
    for kill in range(KILLS):
        subscribers = wait_for_shares(topic, 2)
        victim = sorted(subscribers)[kill % 2]
        names, met = stop_at_work(consumers, topic, victim, subscribers[victim], f"kill-{kill}")
        os.kill(subscribers[victim], signal.SIGKILL)
        command.wait_for_line(f"event=process_died child={subscribers[victim]} .*exit=-9")
        published |= names
        charged.update(met)
    wait_until_settled(topic, GROUP)
    published |= publish_round(consumers, topic)
    end(command)

    handled, begun = effects(), consumers.noted("begin")
    assert {name for name, _ in handled} == published, "messages are lost"
    assert not dead_letter_offsets(topic, GROUP)
    highest = {name: max(attempt for name_, attempt in handled if name_ == name) for name in published}
    again = {name: attempt for name, attempt in highest.items() if attempt > 1}
    assert set(again) <= set(charged), "a message came again that was not in flight"
    assert all(attempt <= 1 + charged[name] for name, attempt in again.items())
    assert set(charged) <= set(again), "an attempt was not counted"
    if topic == "steady":
        assert set(begun.values()) == {1}, "a message had the same attempt twice"
    else:
        assert len(handled) == len(published), "an atomic effect was committed twice"
    assert set(handled.values()) == {1}


def test_a_message_that_ends_its_process_is_dead_lettered_and_its_neighbours_are_not(consumers: Consumers) -> None:
    names = {f"neighbour-{number}" for number in range(40)}
    ordered = sorted(names)
    for name in ordered[:20]:
        consumers.publish("deadly", name, sleep=0.005)
    deadly = consumers.publish("deadly", "deadly", then="die")
    for name in ordered[20:]:
        consumers.publish("deadly", name, sleep=0.005)
    command = consumers.start("deadly")
    wait_until_settled("deadly", GROUP)
    names |= publish_round(consumers, "deadly")
    end(command)

    attempts = sorted(attempt for name, attempt in consumers.noted("begin") if name == "deadly")
    assert attempts in ([1, 2, 3], [1, 2, 3, 4]), "three attempts, and one more if the last was in company"
    assert set(consumers.noted("begin").values()) == {1}, "a message had the same attempt twice"
    assert command.output.count("event=process_died") == len(attempts)
    assert {name for name, _ in effects()} == names
    assert dead_letter_offsets("deadly", GROUP) == [deadly]
    buried = Message.objects.get(topic=dead_letter_topic("deadly"))
    assert (buried.message_id, buried.failure_count) == (f"{GROUP}:{deadly}", attempts[-1])
    assert "process ended" in (buried.last_error or "")


def test_a_message_without_a_bound_of_attempts_that_ends_its_process_is_a_dead_letter_too(
    consumers: Consumers,
) -> None:
    deadly = consumers.publish("endless", "deadly", then="die")
    consumers.publish("endless", "neighbour")
    command = consumers.start("endless")
    wait_until_settled("endless", GROUP)
    end(command)

    attempts = [attempt for name, attempt in consumers.noted("begin") if name == "deadly"]
    assert sorted(attempts) == list(range(1, MOST_DEATHS + 1))
    assert command.output.count("event=process_died") == MOST_DEATHS
    assert {name for name, _ in effects()} == {"neighbour"}
    assert dead_letter_offsets("endless", GROUP) == [deadly]
    dead_letter = Message.objects.get(topic=dead_letter_topic("endless"))
    assert (dead_letter.last_error or "").startswith(f"its consumer process ended {MOST_DEATHS} times")


def start_slow_work(consumers: Consumers, go: Path) -> tuple[ManageCommand, dict[str, int]]:
    """Start two processes with two threads each, all at work until the file `go` is there.

    Returns the processes as heartbeats name them.
    """
    command = consumers.start("steady", processes=2, threads=2)
    subscribers = wait_for_shares("steady", 2)
    for number in range(40):
        consumers.publish("steady", f"work-{number}", wait_for=str(go))
    wait_until(lambda: len(consumers.noted("begin")) == 4)
    return command, subscribers


def wait_until_stopping() -> None:
    """Return when both processes have nothing in flight any more but what their two threads are at."""
    activities = SubscriberHeartbeat.objects.values_list("activity", flat=True)
    wait_until(lambda: [said.partition(" of ")[0] for said in activities.all()] == ["2 in flight"] * 2)


def assert_nothing_is_held() -> None:
    """Assert that no lease and no heartbeat is left."""
    assert not SubscriberHeartbeat.objects.exists()
    assert set(holders("steady")) == {""}
    assert not PartitionLease.objects.filter(valid_until__isnull=False).exists()


def deliver_the_rest(consumers: Consumers) -> None:
    """Run consumers until nothing is left to do."""
    command = consumers.start("steady", drain=True)
    assert command.wait() == 0, command.output
    assert settled("steady", GROUP)


def test_sigterm_finishes_or_releases_what_is_in_flight_and_charges_nothing(
    consumers: Consumers, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    command, subscribers = start_slow_work(consumers, go)
    command.terminate()
    wait_until_stopping()
    go.touch()
    assert command.wait() == 0, command.output
    assert not any(runs(pid) for pid in subscribers.values())
    assert_nothing_is_held()
    begun = consumers.noted("begin")
    assert begun == consumers.noted("end"), "what had started was not finished"
    assert len(begun) == 4
    deliver_the_rest(consumers)
    assert effects() == {(f"work-{number}", 1): 1 for number in range(40)}


def test_a_second_sigterm_leaves_at_once(
    consumers: Consumers, consumer_options: dict[str, Any], tmp_path: Path
) -> None:
    consumer_options["SHUTDOWN_TIMEOUT"] = 600
    go = tmp_path / "go"
    command, subscribers = start_slow_work(consumers, go)
    command.terminate()
    command.wait_for_line("event=stopping how=gracefully")
    started = consumers.noted("begin")
    assert command.returncode is None
    time.sleep(2 * ONE_REQUEST)  # signals that come closer are one request
    command.terminate()
    assert command.wait() == 1, command.output
    assert not any(runs(pid) for pid in subscribers.values())
    assert_nothing_is_held()

    go.touch()
    deliver_the_rest(consumers)
    assert not consumers.noted("begin") - started - effects()
    assert {name for name, _ in effects()} == {f"work-{number}" for number in range(40)}
    assert all(consumers.noted("end")[name, 2] for name, _ in started), "an attempt was not counted"
    assert not dead_letter_offsets("steady", GROUP)


def test_consumers_whose_supervisor_is_killed_stop_by_themselves(consumers: Consumers, tmp_path: Path) -> None:
    go = tmp_path / "go"
    command, subscribers = start_slow_work(consumers, go)
    command.kill()
    wait_until_stopping()
    go.touch()
    wait_until(lambda: not any(runs(pid) for pid in subscribers.values()), message="the consumers go on alone")
    wait_until(lambda: not heartbeats())
    assert_nothing_is_held()
    assert consumers.noted("begin") == consumers.noted("end")
    deliver_the_rest(consumers)
    assert effects() == {(f"work-{number}", 1): 1 for number in range(40)}
