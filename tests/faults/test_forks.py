"""A child that is forked where the engine runs never goes on as the engine, and spoils no connection of its parent."""

from __future__ import annotations

import json
import os
import re
from collections import Counter

import pytest
from django.db import connection, connections

from sqlqueue import publish_many
from sqlqueue.core import forks
from sqlqueue.models import DeliveryState, Message
from tests.app.models import Effect
from tests.consumer_processes import QUICK
from tests.processes import ManageCommands, wait_until
from tests.progress import wait_until_settled

pytestmark = [pytest.mark.long("sqlite"), pytest.mark.django_db(transaction=True)]

KINDS = ("each", "atomic", "grouped", "inside", "batch", "async", "hook")
STATUSES = {
    "exit": "7",
    "return": "0",
    "raise": "1",
    "leave": "5",
    "write": "3",
    "close": "4",
    "multiprocessing": "0",
    "pool": "6",
    "terminated": "-15",
}
WRITING = {"write": "by fork", "multiprocessing": "by multiprocessing"}
OPTIONS = json.dumps({**QUICK, "CONSUMERS_MODULE": "forking_handlers", "PARTITIONS": 1})
# What the log has to say of a connection that was lost, or of a transaction whose end is not known.
LOST = re.compile(r"event=(?:operation_\w+|database_\w+|commit_\w+|transaction_\w+|iteration_failed|process_died).*")


def effects(name: str) -> list[str]:
    return list(Effect.objects.filter(name=name).values_list("value", flat=True))


def test_what_a_handlers_child_does_is_nothing_to_its_parent(manage: ManageCommands) -> None:
    topics, hows = [f"forks.{kind}" for kind in KINDS], list(STATUSES)
    if connection.vendor == "sqlite":
        hows = [how for how in hows if how not in WRITING]  # the library itself does not work in a child
    words = [f"--topic={topic}" for topic in topics]
    command = manage("runconsumers", *words, "--threads", "3", "--verbosity=2", env={"SQLQUEUE": OPTIONS})
    command.wait_for_line("event=subscriber_started")
    for topic in topics:
        publish_many(topic, hows)
    for topic in topics:
        wait_until_settled(topic, "default")
    command.terminate()
    assert command.wait() == 0, command.output
    assert Counter(effects("before")) == Counter(hows * len(KINDS))
    assert Counter(effects("after")) == Counter([f"{how} {STATUSES[how]}" for how in hows] * len(KINDS)), command.output
    assert not Message.objects.dead_letters().exists()
    assert not DeliveryState.objects.exists()
    assert LOST.findall(command.output) == []
    assert command.output.count("event=subscriber_stopped") == 1
    assert set(effects("child")) == {WRITING[how] for how in hows if how in WRITING}


def test_a_receivers_child_is_no_second_control_thread(manage: ManageCommands) -> None:
    topics = [f"received.{how}" for how in ("exit", "return", "raise")]
    command = manage("runconsumers", *[f"--topic={topic}" for topic in topics], env={"SQLQUEUE": OPTIONS})
    command.wait_for_line("event=subscriber_started")
    for topic in topics:
        publish_many(topic, ["one"])
    wait_until(lambda: len(effects("after")) == 3, message=lambda: command.output)
    command.terminate()
    assert command.wait() == 0, command.output
    assert sorted(effects("after")) == ["exit 7", "raise 0", "return 0"]  # what a receiver raises, Django catches
    assert LOST.findall(command.output) == []


RECEIVER = """
import os, sys
from sqlqueue import subscribe
with subscribe("t", timeout=2) as deliveries:
    for delivery in deliveries:
        pid = os.fork()
        if pid == 0:
            {child}
        else:
            print("child:", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
            delivery.ack()
print("left by", os.getpid())
"""


@pytest.mark.parametrize(("child", "status"), [("sys.exit(7)", 7), ("pass", 0), ("1 / 0", 1), ("break", 0)])
def test_a_pull_loop_goes_on_in_the_parent_alone(manage: ManageCommands, child: str, status: int) -> None:
    publish_many("t", [1, 2])
    options = json.dumps({**QUICK, "CONSUMERS_MODULE": "no_consumers"})
    command = manage("shell", "-c", RECEIVER.format(child=child), env={"SQLQUEUE": options})
    assert command.wait() == 0, command.output
    assert command.output.count(f"child: {status}") == 2, command.output
    assert re.findall(r"left by (\d+)", command.output) == [str(command.pid)]
    assert not DeliveryState.objects.exists()


def test_a_process_without_the_engine_forks_as_ever() -> None:
    """A web server loads the application, and forks its workers."""
    assert not forks.hosts()
    before = connections["default"]
    pid = os.fork()
    if pid == 0:
        os._exit(0 if connections["default"] is before and forks.generation == 0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
