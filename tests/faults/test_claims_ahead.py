"""Processes that claim ahead are killed, stopped and continued, and moved under load: nothing is lost, no attempt has
the number of another, and no message is dead-lettered because it was claimed."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connections
from django.db.models import Max
from pytest_django import Settings

from sqlqueue.models import Message, Offset
from sqlqueue.operations.move import move
from tests.consumer_processes import GROUP, QUICK, Consumers, heartbeats, wait_for_shares
from tests.logs import LOG
from tests.processes import wait_until
from tests.progress import dead_letter_offsets, wait_until_settled

pytestmark = [pytest.mark.long("sqlite"), pytest.mark.django_db(transaction=True)]

AHEAD = 40  # offsets
PAUSE = 0.01  # seconds between two messages
TOPICS = ["once", "once-batches"]


@pytest.fixture
def consumer_options(settings: Settings) -> dict[str, Any]:
    """Leases that a frozen consumer soon loses."""
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 2, "LEASE_DURATION": 5}
    return settings.SQLQUEUE


class Load:
    """Publishes one message after another, in a thread of its own."""

    def __init__(self, consumers: Consumers, topic: str):
        self._consumers, self._topic = consumers, topic
        self.names: list[str] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._publish, daemon=True)
        self._thread.start()

    def _publish(self) -> None:
        try:
            for number in itertools.count():
                self._consumers.publish(self._topic, f"m{number}")
                self.names.append(f"m{number}")
                if self._ended.wait(PAUSE):
                    break
        finally:
            connections.close_all()

    def wait_for_more(self, messages: int = 50) -> None:
        wanted = len(self.names) + messages
        wait_until(lambda: len(self.names) >= wanted)

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


@contextmanager
def load(consumers: Consumers, topic: str) -> Iterator[Load]:
    """Publish meanwhile."""
    made = Load(consumers, topic)
    try:
        yield made
    finally:
        made.end()


def is_ahead(topic: str) -> bool:
    """Tell whether a claim is above the log's end."""
    claimed = Offset.objects.filter(topic=topic).aggregate(claimed=Max("claimed_to"))["claimed"] or 0
    end = Message.objects.aggregate(end=Max("offset"))["end"] or 0
    return bool(claimed > end)


def check_attempts(consumers: Consumers, topic: str, names: list[str]) -> None:
    begun = consumers.noted("begin")
    assert {name for name, _ in consumers.noted("end")} == set(names), "messages are lost"
    assert set(begun.values()) == {1}, "a message had the same attempt twice"
    assert not dead_letter_offsets(topic, GROUP)


@pytest.mark.parametrize("topic", TOPICS)
def test_killed_processes_have_counted_every_attempt(consumers: Consumers, topic: str) -> None:
    with load(consumers, topic) as publishing:
        command = consumers.start(topic, processes=2, threads=2, ahead=AHEAD)
        for number in range(2):
            subscribers = wait_for_shares(topic, 2)
            publishing.wait_for_more()
            wait_until(lambda: is_ahead(topic))
            victim = subscribers[sorted(subscribers)[number]]
            os.kill(victim, signal.SIGKILL)
            command.wait_for_line(f"event=process_died child={victim} .*exit=-9")
            publishing.wait_for_more()
    wait_until_settled(topic, GROUP)
    command.terminate()
    assert command.wait() == 0, command.output
    check_attempts(consumers, topic, publishing.names)


# A frozen writer of SQLite keeps the whole database locked: no process could take over.
@pytest.mark.database("mariadb", "mysql", "postgresql")
@pytest.mark.parametrize("topic", TOPICS)
def test_a_process_that_goes_on_after_a_takeover_starts_nothing_that_was_not_counted(
    consumers: Consumers, topic: str
) -> None:
    with load(consumers, topic) as publishing:
        zombie = consumers.start(topic, processes=0, ahead=AHEAD)
        wait_until(lambda: zombie.pid in heartbeats().values())
        publishing.wait_for_more()
        wait_until(lambda: is_ahead(topic))
        zombie.freeze()
        successor = consumers.start(topic, processes=0, ahead=AHEAD)
        before = len(consumers.noted("end"))
        wait_until(lambda: len(consumers.noted("end")) > before + 10, message="no process took over")
        zombie.thaw()
        zombie.wait_for_line("event=lease_lost")
        publishing.wait_for_more()
    wait_until_settled(topic, GROUP)
    for command in (zombie, successor):
        command.terminate()
        assert command.wait() == 0, command.output
    check_attempts(consumers, topic, publishing.names)


@pytest.mark.parametrize("topic", TOPICS)
def test_a_group_that_is_moved_under_load_gets_everything(consumers: Consumers, topic: str) -> None:
    with load(consumers, topic) as publishing:
        command = consumers.start(topic, processes=1, ahead=AHEAD)
        for _ in range(3):
            publishing.wait_for_more()
            wait_until(lambda: is_ahead(topic))
            move(LOG, GROUP, topic, 0)
        publishing.wait_for_more()
    wait_until_settled(topic, GROUP)
    command.terminate()
    assert command.wait() == 0, command.output
    assert {name for name, _ in consumers.noted("end")} == set(publishing.names), "messages are lost"
    assert not dead_letter_offsets(topic, GROUP)


def test_a_claim_falls_back_once_nothing_comes_any_more(consumers: Consumers) -> None:
    with load(consumers, "once") as publishing:
        consumers.start("once", processes=1, ahead=AHEAD)
        publishing.wait_for_more()
        wait_until(lambda: is_ahead("once"))
    wait_until_settled("once", GROUP)
    began = time.monotonic()
    wait_until(lambda: all(row.claimed_to == row.position for row in Offset.objects.filter(topic="once")))
    assert time.monotonic() - began < 20
