"""A topic's partitions are changed while publishers publish and consumers consume, and the process that changes them is
killed: every key in order, nothing lost, nothing twice."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict

import pytest
from django.db import connections, transaction

from sqlqueue import publish
from sqlqueue.log.groups import register
from sqlqueue.log.layout_changes import under_way
from sqlqueue.log.layouts import epochs
from sqlqueue.models import Message, Topic
from tests.consumer_processes import GROUP, Consumers
from tests.logs import LOG
from tests.processes import ManageCommands, wait_until
from tests.progress import wait_until_settled

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.long]

TOPIC, PARTITIONS = "steady", 4


class Publisher(threading.Thread):
    """Publishes the numbered messages of its own keys, in transactions of one or several statements."""

    def __init__(self, name: str, notes: str) -> None:
        super().__init__(daemon=True)
        self.keys, self.notes = [f"{name}{number}" for number in range(4)], notes
        self.numbers: dict[str, int] = defaultdict(int)
        self.stopping = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        dice = random.Random(self.keys[0])
        try:
            while not self.stopping.wait(0.01):
                with transaction.atomic():
                    for _ in range(dice.randint(1, 3)):
                        self._publish(dice.choice(self.keys))
                        time.sleep(dice.random() * 0.01)
        except BaseException as error:
            self.error = error
        finally:
            connections.close_all()

    def _publish(self, key: str) -> None:
        publish(TOPIC, {"notes": self.notes}, key=key, id=f"{key}-{self.numbers[key]}")
        self.numbers[key] += 1


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_while_all_run_and_it_is_killed(consumers: Consumers, manage: ManageCommands) -> None:
    Topic.objects.update_or_create(name=TOPIC, defaults={"partitions": PARTITIONS})
    register(LOG, GROUP, TOPIC)
    consumers.start(TOPIC, processes=2, threads=2)
    publishers = [Publisher(name, str(consumers.notes)) for name in "ab"]
    for publisher in publishers:
        publisher.start()
    try:
        for partitions in (6, 3):
            wait_until(lambda: consumers.notes.exists() and consumers.notes.stat().st_size > 1_000)
            command = manage("queuetopic", "alter", TOPIC, "--partitions", str(partitions), "--no-input")
            command.wait_for_line("partitions become")
            command.kill()
            command = manage("queuetopic", "alter", TOPIC, "--partitions", str(partitions), "--no-input")
            command.wait()
            wait_until(lambda: under_way(LOG) is None, message=lambda command=command: command.output)
            base = epochs(LOG, TOPIC)[-1].base
            wait_until(lambda base=base: Message.objects.filter(topic=TOPIC, partition__gte=base).count() > 20)
    finally:
        for publisher in publishers:
            publisher.stopping.set()
            publisher.join(60)
    assert [publisher.error for publisher in publishers] == [None, None]
    wait_until_settled(TOPIC, GROUP)
    begun: dict[str, list[int]] = defaultdict(list)
    for line in consumers.notes.read_text().splitlines():
        what, id, _ = line.split()
        if what == "begin":
            key, number = id.rsplit("-", 1)
            begun[key].append(int(number))
    for publisher in publishers:
        for key, count in publisher.numbers.items():
            assert begun[key] == list(range(count)), key
    assert {one.partitions for one in epochs(LOG, TOPIC)} >= {3}
