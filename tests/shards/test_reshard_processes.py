"""A topic is spread over other shards while publishers publish and consumers consume, on two servers; the process that
changes it is killed, and so are consumers, and a server is away for a while: every key in order, nothing lost."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from django.db import Error, connections

from sqlqueue import publish
from sqlqueue.core.shards import shard_of
from sqlqueue.log.groups import register
from sqlqueue.log.placement import newest_placement
from sqlqueue.log.reshard_state import stored_spread
from sqlqueue.models import SubscriberHeartbeat
from sqlqueue.operations.reshard import Reshard, begin
from tests.consumer_processes import GROUP, QUICK, Consumers
from tests.processes import ManageCommand, ManageCommands, wait_until
from tests.servers.private import PrivateServer
from tests.shards.aliases import SHARDS, A, B

pytestmark = [pytest.mark.long, pytest.mark.database("mariadb", "mysql", "postgresql")]

TOPIC = "steady"


@pytest.fixture
def consumer_options(settings: Any) -> dict[str, Any]:
    settings.SQLQUEUE = QUICK | {
        "SHARDS": SHARDS,
        "LEASE_DURATION": 5,
        "COLLECT_INTERVAL": 1,
        "TOPICS": {TOPIC: {"shards": ["a"], "partitions": 4}},
    }
    return settings.SQLQUEUE


class Publisher(threading.Thread):
    """Publishes the numbered messages of its own keys, each again until it succeeds: by its id it is there once."""

    def __init__(self, name: str, notes: str) -> None:
        super().__init__(daemon=True)
        self.keys, self.notes = [f"{name}{number}" for number in range(6)], notes
        self.numbers: dict[str, int] = defaultdict(int)
        self.stopping = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        dice = random.Random(self.keys[0])
        try:
            while not self.stopping.wait(0.1):
                key = dice.choice(self.keys)
                while not self._publish(key):
                    time.sleep(0.1)
                self.numbers[key] += 1
        except BaseException as error:
            self.error = error
        finally:
            connections.close_all()

    def _publish(self, key: str) -> bool:
        try:
            publish(TOPIC, {"notes": self.notes}, key=key, id=f"{key}-{self.numbers[key]}")
        except Error:
            connections.close_all()
            return False
        return True


def altered(to: str) -> bool:
    placed = newest_placement(TOPIC)
    return placed is not None and placed.shards == tuple(sorted(to.split(","))) and placed.spread.coming is None


def begun(notes: Path) -> dict[str, list[int]]:
    """Return the numbers of each key whose handling began for the first time, in that order."""
    found: dict[str, list[int]] = defaultdict(list)
    for line in notes.read_text().splitlines():
        what, id, _ = line.split()
        key, number = id.rsplit("-", 1)
        if what == "begin" and int(number) not in found[key]:
            found[key].append(int(number))
    return found


def alter(manage: ManageCommands, to: str, options: dict[str, Any]) -> ManageCommand:
    return manage("queuetopic", "alter", TOPIC, "--shards", to, "--no-input", env={"SQLQUEUE": json.dumps(options)})


def kill_a_consumer(alias: str) -> None:
    rows = SubscriberHeartbeat.objects.using(alias).alive().values_list("pid", flat=True)
    for pid in rows[:1]:
        os.kill(pid, signal.SIGKILL)


def test_while_all_run_and_it_is_killed(
    second_server: PrivateServer, consumers: Consumers, manage: ManageCommands, consumer_options: dict[str, Any]
) -> None:
    publish(TOPIC, {"notes": str(consumers.notes)}, key="first", id="first-0")
    register(A, GROUP, TOPIC)
    running = consumers.start(TOPIC, processes=1, threads=4)
    publishers = [Publisher(name, str(consumers.notes)) for name in "xy"]
    for publisher in publishers:
        publisher.start()
    dice = random.Random(3)
    try:
        for to in ("a,b", "b"):
            size = consumers.notes.stat().st_size + 1_000
            wait_until(lambda size=size: consumers.notes.stat().st_size > size)
            for _ in range(2):
                command = alter(manage, to, consumer_options)
                command.wait_for_line("its keys are on|is on .* already")
                time.sleep(dice.random())
                command.kill()
                kill_a_consumer(A)
            command = alter(manage, to, consumer_options)
            command.wait()
            wait_until(lambda to=to: altered(to), message=lambda command=command: command.output)
            moved = next(f"z{n}" for n in range(50) if shard_of(f"z{n}", to.split(",")) == "b")
            publish(TOPIC, {"notes": str(consumers.notes)}, key=moved, id=f"{moved}-0")
            wait_until(lambda moved=moved: begun(consumers.notes)[moved], 120, lambda: running.output[-3000:])
    finally:
        for publisher in publishers:
            publisher.stopping.set()
            publisher.join(60)
    assert [publisher.error for publisher in publishers] == [None, None]
    order: dict[str, list[int]] = {}

    def all_begun() -> bool:
        order.update(begun(consumers.notes))
        return all(len(order.get(key, ())) >= count for one in publishers for key, count in one.numbers.items())

    wait_until(all_begun, 120, lambda: running.output[-3000:])
    for publisher in publishers:
        for key, count in publisher.numbers.items():
            assert order[key] == list(range(count)), key


def test_a_server_that_is_down_is_waited_for_and_holds_up_no_other(
    second_server: PrivateServer, consumers: Consumers, manage: ManageCommands, consumer_options: dict[str, Any]
) -> None:
    def publish_all(number: int, keys: list[str]) -> None:
        for key in keys:
            publish(TOPIC, {"notes": str(consumers.notes)}, key=key, id=f"{key}-{number}")

    def begun_up_to(number: int, keys: list[str]) -> bool:
        order = begun(consumers.notes)
        return all(order[key] == list(range(number + 1)) for key in keys)

    keys = [f"k{number}" for number in range(8)]
    of_b = [key for key in keys if shard_of(key, "ab") == "b"]
    of_a = [key for key in keys if key not in of_b]
    publish_all(0, keys)
    running = consumers.start(TOPIC, processes=1, threads=4)
    wait_until(lambda: begun_up_to(0, keys), message=lambda: running.output[-3000:])

    second_server.kill()
    connections[B].close()
    command = alter(manage, "a,b", consumer_options)
    command.wait_for_line("Waits for shard 'b' to answer")
    publish_all(1, keys)
    second_server.start()
    connections[B].close()
    wait_until(lambda: altered("a,b"), message=lambda: command.output)
    publish_all(2, keys)
    wait_until(lambda: begun_up_to(2, keys), 120, lambda: running.output[-3000:])

    begin(TOPIC, ["a"])
    steps = Reshard(TOPIC)
    wait_until(lambda: steps.step() and stored_spread(A, TOPIC).closing)
    second_server.kill()
    connections[B].close()
    command = alter(manage, "a", consumer_options)
    command.wait_for_line("shard b: It waits for this shard to answer")
    publish_all(3, of_a)
    with pytest.raises(Error):
        publish_all(3, of_b)
    second_server.start()
    connections[B].close()
    wait_until(lambda: altered("a"), message=lambda: command.output)
    publish_all(3, of_b)
    publish_all(4, keys)
    wait_until(lambda: begun_up_to(4, keys), 120, lambda: running.output[-3000:])
    assert publish(TOPIC, {"notes": str(consumers.notes)}, key=of_b[0], id=f"{of_b[0]}-5").shard == "a"
