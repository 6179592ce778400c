"""Processes that offer one key, beside a consumer that settles: one message at a time is pending."""

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, connections

from sqlqueue import get_status, publish
from sqlqueue.log import unique
from sqlqueue.models import Message
from tests.consuming import QUICK, Consuming
from tests.logs import LOG
from tests.processes import ROOT, environment, wait_until
from tests.races.unique_publisher import TOPIC
from tests.servers.session import needs_one

pytestmark = pytest.mark.django_db(transaction=True)

PUBLISHERS, ROUNDS = 3, 9
FREE = 12  # messages that each process creates
SQLQUEUE = {**QUICK, "PARTITIONS": 1, "FLUSH_INTERVAL": 0}


class Publishers:
    """Processes that offer keys at one time."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.races.unique_publisher"]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        env = environment(SQLQUEUE=json.dumps(SQLQUEUE))
        self._processes = [subprocess.Popen(command, env=env, cwd=ROOT, **pipes) for _ in range(PUBLISHERS)]

    def all(self, order: Callable[[int], str]) -> list[Any]:
        """Give each its order, and return their answers."""
        for number, process in enumerate(self._processes):
            assert process.stdin is not None
            process.stdin.write(order(number) + "\n")
        return [json.loads(process.stdout.readline()) for process in self._processes if process.stdout is not None]

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def processes(django_db_setup: object) -> Iterator[Publishers]:
    publishers = Publishers()
    yield publishers
    publishers.end()


@pytest.fixture(params=["READ_COMMITTED", "REPEATABLE_READ"])
def publishers(request: pytest.FixtureRequest, processes: Publishers, settings: Any) -> Publishers:
    if request.param != "READ_COMMITTED" and connection.vendor == "sqlite":
        pytest.skip("SQLite has one level")
    if request.param != "READ_COMMITTED":
        needs_one()
    settings.SQLQUEUE = SQLQUEUE
    publish(TOPIC, "so that the topic is there")
    Message.objects.all().delete()
    processes.all(lambda number: f"level {request.param} -")
    return processes


class Witness:
    """A handler that looks whether another message of its key was published while its own is pending."""

    def __init__(self) -> None:
        self.handled: Counter[int] = Counter()
        self.others: list[int] = []
        self.may_return = threading.Event()
        self.may_return.set()

    def __call__(self, delivery: Any) -> None:
        self.may_return.wait(60)
        self.handled[delivery.offset] += 1
        other = Message.objects.filter(partition_key=delivery.key, offset__gt=delivery.offset)
        self.others += other.values_list("offset", flat=True)


def test_of_those_that_offer_a_key_at_one_time_one_creates_its_message(
    publishers: Publishers, consuming: Consuming
) -> None:
    witness = Witness()
    consuming.consumer(TOPIC, witness)
    consuming.start()
    for number in range(ROUNDS):
        witness.may_return.clear()
        told = publishers.all(lambda process, number=number: f"round a {process + number}")
        assert sorted(told) == ["created"] + ["ignored"] * (PUBLISHERS - 1), number
        id = Message.objects.latest("offset").message_id
        witness.may_return.set()
        wait_until(lambda id=id: get_status(TOPIC, id=id, key="a").finished)
    assert Message.objects.count() == len(witness.handled) == ROUNDS
    assert witness.others == []


def test_at_no_time_two_are_pending(
    publishers: Publishers, consuming: Consuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While messages are settled, transactions roll back, and rows of keys are purged."""
    monkeypatch.setattr(unique, "LEFT_ALONE", -60.0)
    witness, over = Witness(), threading.Event()
    consuming.consumer(TOPIC, witness)
    host = consuming.start()

    def purge() -> None:
        while not over.wait(0.005):
            unique.purge(LOG, "")
        connections.close_all()

    purging = threading.Thread(target=purge)
    purging.start()
    try:
        created = publishers.all(lambda process: f"free {process} {FREE}")
    finally:
        over.set()
        purging.join()
    wait_until(lambda: sum(witness.handled.values()) >= sum(created))
    host.stop()
    assert sum(created) == Message.objects.count() == len(witness.handled) >= PUBLISHERS * FREE
    assert witness.others == []
