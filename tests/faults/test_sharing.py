"""Processes that share one partition are killed while others ask for another number of slices: nothing is lost, and no
effect is there twice."""

import os
import signal
import threading
from collections import Counter
from typing import Any

import pytest
from django.db import connections

from sqlqueue.models import ConsumerGroup, PartitionLease
from tests.consumer_processes import QUICK, Consumers, effects, heartbeats, holders
from tests.processes import ManageCommand, wait_until
from tests.progress import wait_until_settled

pytestmark = pytest.mark.django_db(transaction=True)

TOPIC = "sliced"
COURSE = (1, 8, 3)


@pytest.fixture
def consumer_options(settings: Any) -> dict[str, Any]:
    settings.SQLQUEUE = {**QUICK, "TOPICS": {TOPIC: {"partitions": 1}}}
    return settings.SQLQUEUE


class Publisher(threading.Thread):
    """Publishes one message after another until it is stopped."""

    def __init__(self, consumers: Consumers, name: str) -> None:
        super().__init__(daemon=True)
        self.published: list[str] = []
        self._consumers, self._name, self._over = consumers, name, threading.Event()

    def run(self) -> None:
        try:
            while not self._over.wait(0.02):
                name = f"{self._name}-{len(self.published)}"
                self._consumers.publish(TOPIC, name, sleep=0.005)
                self.published.append(name)
        finally:
            connections.close_all()

    def __enter__(self) -> "Publisher":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


def handled() -> Counter[str]:
    return Counter(name for name, _ in effects().elements())


def kill_one(processes: ManageCommand) -> None:
    """Kill a process that holds a slice; its supervisor starts another one."""
    held = wait_until(lambda: set(holders(TOPIC)) & set(heartbeats()))
    before = heartbeats()
    os.kill(before[sorted(held)[0]], signal.SIGKILL)
    wait_until(lambda: set(heartbeats()) != set(before), message=lambda: processes.output)


def test_nothing_is_lost_and_nothing_twice_while_the_number_of_slices_changes_and_processes_are_killed(
    consumers: Consumers,
) -> None:
    former: ManageCommand | None = None
    with Publisher(consumers, "a") as one, Publisher(consumers, "b") as another:
        for slices in COURSE:
            present = consumers.start(TOPIC, processes=2, threads=2, sharing=slices)
            wait_until(lambda: len(heartbeats()) >= 2, message=lambda: present.output)  # noqa: B023
            kill_one(present)
            if former is not None:
                kill_one(former)
                former.terminate()
                former.wait()  # its exit status says that a process of it was killed, or had not been replaced yet
            wait_until(lambda: ConsumerGroup.objects.get().sharing == slices)  # noqa: B023
            assert PartitionLease.objects.count() == slices
            kill_one(present)
            before = sum(handled().values())
            wait_until(lambda: sum(handled().values()) > before + 30)  # noqa: B023
            former = present
    wait_until_settled(TOPIC, "default")
    assert handled() == Counter(one.published + another.published)
