"""What a process that has nothing to do sends its database, counted over a minute of simulated time."""

import re
import time
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection, connections

from sqlqueue import Delivery, NewMessage, Reject, publish, publish_many
from sqlqueue.consumers.background import duties
from sqlqueue.consumers.background import task as task_module
from sqlqueue.consumers.background.task import BackgroundTask
from sqlqueue.consumers.declare.registry import build
from sqlqueue.consumers.engine.subscriber import Subscriber
from sqlqueue.consumers.handlers.inline import InlinePool
from sqlqueue.database import retries
from sqlqueue.models import Message, Request, dead_letter_topic
from sqlqueue.models.request import DONE
from sqlqueue.operations.replay_requests import request_replay
from tests.database.plans import NOT_WAITING
from tests.logs import LOG
from tests.servers.processlist import end_this_threads_connection

MINUTE = 60.0
PARTITIONS = 1_000

POLL = "SELECT (SELECT MAX("  # what is new, what is scheduled, and whether there are requests

# How often what they begin with is sent beside. docs/operations/scaling.md has some of these figures.
SENT = {
    "SELECT g.consumer_group": 20,  # options, with each balance
    "SELECT serves": 20,
    "SELECT consumer_group, topic, partition, id": 20,
    "SELECT 1 FROM sqlqueue_scheduled_message": 0,  # the polls tell of them
    "SELECT sqlqueue_request": 0,
    "SELECT sqlqueue_batch": 2,
    "INSERT INTO sqlqueue_subscriber_heartbeat": 6,
    "UPDATE sqlqueue_partition_lease": 6,
}


class Idle:
    """A subscriber and its background tasks, all in this thread and by a clock of its own."""

    def __init__(self, subscriber: Subscriber) -> None:
        self.now = time.monotonic()
        self.subscriber = subscriber
        subscriber.clock = lambda: self.now
        subscriber.start()
        self._due: dict[object, float] = dict.fromkeys(subscriber._background_tasks, self.now)
        self._due[None] = self.now

    def pass_time(self, seconds: float) -> None:
        """Run the loop and each task when it is due."""
        end = self.now + seconds
        while (moment := min(self._due.values())) < end:
            self.now = max(self.now, moment)
            for who in [who for who, due in self._due.items() if due <= self.now]:
                self._due[who] = self.now + self._run(who)
            for task in self.subscriber._background_tasks:
                if task._due.is_set():
                    task._due.clear()
                    self._due[task] = self.now
        self.now = end

    def _run(self, who: Any) -> float:
        if who is None:
            return self.subscriber.run_once()
        return 0.0 if who._guarded(who.run_once) else who.interval


@pytest.fixture
def idle(transactional_db: None, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    settings.SQLQUEUE = {"PARTITIONS": PARTITIONS, "WAKE": False, "LEASE_DURATION": 3600}
    monkeypatch.setattr(BackgroundTask, "start", lambda task: None)
    monkeypatch.setattr(BackgroundTask, "stop", lambda task: None)

    def handle(delivery: Delivery) -> None:
        if delivery.payload == "wrong":
            raise Reject("wrong")

    consumer = replace(build("t", {"group": "g"}), handler=handle)
    publish_many("t", [NewMessage(number, key=f"{number}") for number in range(5)])
    process = Idle(Subscriber([consumer], pool=InlinePool))
    for module in (task_module, duties):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: process.now))
    process.pass_time(MINUTE)
    assert process.subscriber.settled == 5
    yield process
    process.subscriber.stop(timeout=0.0)
    process.subscriber.close()


def test_a_process_with_a_thousand_partitions_sends_five_statements_a_second(idle: Idle) -> None:
    statements: list[str] = []

    def record(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        statements.append(sql)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(record):
        idle.pass_time(MINUTE)
    assert len(statements) <= 5 * MINUTE, Counter(statements).most_common()
    plain = [re.sub(r"[`\"]", "", " ".join(NOT_WAITING.sub("", sql).split())) for sql in statements]
    assert MINUTE / 0.4 * 0.9 <= sum(sql.startswith(POLL) for sql in plain) <= MINUTE / 0.4
    assert {sent: sum(sql.startswith(sent) for sql in plain) for sent in SENT} == SENT
    assert not idle.subscriber.working_set.partitions, "each iteration visits none"


def test_a_process_that_was_told_of_a_request_looks_at_once(idle: Idle, monkeypatch: pytest.MonkeyPatch) -> None:
    publish("t", "wrong")
    idle.pass_time(1.0)
    assert Message.objects.filter(topic=dead_letter_topic("t")).count() == 1
    idle.pass_time(MINUTE)
    request_replay(LOG, "t")
    idle.pass_time(2.0)
    assert Request.objects.get().state == DONE


def test_a_connection_that_has_rested_is_asked_only_where_there_is_a_sign_that_it_was_lost(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.ensure_connection()
    if connection.vendor == "postgresql":
        with monkeypatch.context() as patched:
            patched.setattr(type(connections["default"]), "is_usable", lambda self: pytest.fail("it was asked"))
            assert not retries.close_lost_connections()
    assert not retries.close_lost_connections()
    if connection.vendor != "sqlite":
        end_this_threads_connection()
        assert retries.close_lost_connections()
