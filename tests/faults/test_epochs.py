"""Owners of a closed epoch are killed while others walk to the next one: every key in order, nothing lost, nothing
stands still."""

import os
import signal
from collections import defaultdict
from typing import Any

import pytest

from sqlqueue.log.groups import register
from sqlqueue.operations.move import move
from tests import epochs
from tests.consumer_processes import GROUP, Consumers, heartbeats, holders
from tests.logs import LOG
from tests.processes import ManageCommand, wait_until
from tests.progress import wait_until_settled

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.long]

KEYS = [f"key{number}" for number in range(10)]
TROUBLES = {3: "fail", 5: "reject"}


class Course:
    """Publishes numbered messages of some keys to a topic's last epoch."""

    def __init__(self, consumers: Consumers, topic: str) -> None:
        self.topic, self.rounds = topic, 0
        self._consumers = consumers
        register(LOG, GROUP, topic)

    def publish(self, rounds: int = 6) -> None:
        for _ in range(rounds):
            payload: dict[str, Any] = {"notes": str(self._consumers.notes), "sleep": 0.005}
            if self.topic != "batches":  # there a trouble is that of all messages
                payload["then"] = TROUBLES.get(self.rounds % 10)
            for key in KEYS:
                epochs.publish_into(self.topic, payload, key, id=f"{key}-{self.rounds}")
            self.rounds += 1

    def begun(self) -> dict[str, list[int]]:
        """Return the numbers of each key, in the order in which handlers have begun with them."""
        found: dict[str, list[int]] = defaultdict(list)
        for line in self._consumers.notes.read_text().splitlines():
            what, id, _ = line.split()
            key, number = id.split("-")
            if what == "begin":
                found[key].append(int(number))
        return found

    def check(self, *, ordered: bool = True) -> None:
        wait_until_settled(self.topic, GROUP)
        begun = self.begun()
        for key in KEYS:
            assert set(begun[key]) == set(range(self.rounds)), key
            ways = [begun[key]]
            if self.topic == "batches":  # one that was in doubt comes again as a whole
                ways = [list(dict.fromkeys(begun[key])), list(dict.fromkeys(reversed(begun[key])))[::-1]]
            assert not ordered or all(way == sorted(way) for way in ways), (key, begun[key])


def kill_one(topic: str, processes: ManageCommand) -> None:
    """Kill a process that holds a lease; its supervisor starts another one."""
    held = wait_until(lambda: set(holders(topic)) & set(heartbeats()), message=lambda: processes.output)
    before = heartbeats()
    os.kill(before[sorted(held)[0]], signal.SIGKILL)
    wait_until(lambda: set(heartbeats()) != set(before), message=lambda: processes.output)


@pytest.mark.parametrize(
    "topic",
    [
        "steady",
        "unordered",
        pytest.param("atomic", marks=pytest.mark.database("mariadb", "mysql", "postgresql")),
        pytest.param("batches", marks=pytest.mark.database("mariadb", "mysql", "postgresql")),
    ],
)
def test_killed_owners_lose_nothing_and_keep_the_order_over_epochs(consumers: Consumers, topic: str) -> None:
    course = Course(consumers, topic)
    course.publish()
    epochs.alter(topic, 6)
    course.publish()
    processes = consumers.start(topic, processes=2, threads=2)
    kill_one(topic, processes)
    epochs.begin(topic, 3)
    course.publish()
    kill_one(topic, processes)
    epochs.end(topic)
    course.publish()
    kill_one(topic, processes)
    course.check(ordered=topic != "unordered")


def test_a_rewind_among_killed_owners_is_in_order(consumers: Consumers) -> None:
    course = Course(consumers, "steady")
    processes = consumers.start("steady", processes=2, threads=2)
    for partitions in (6, 3):
        course.publish(3)
        epochs.alter("steady", partitions)
    course.publish(3)
    course.check()
    consumers.notes.write_text("")
    move(LOG, GROUP, "steady", 0)
    kill_one("steady", processes)
    course.check()
