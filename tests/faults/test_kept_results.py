"""kill -9 at any moment: what is acked has its result, and what has a result is acked."""

import os
import signal

import pytest

from sqlqueue import get_status
from sqlqueue.models import Result
from sqlqueue.stats.group_status import GroupStatus
from tests.consumer_processes import GROUP, Consumers, effects, heartbeats
from tests.processes import wait_until

pytestmark = [pytest.mark.long("sqlite"), pytest.mark.django_db(transaction=True)]
TOPICS = ("kept", "kept-atomic")
MESSAGES, KILLS = 60, 2


def status_of(topic: str, name: str) -> GroupStatus:
    status = get_status(topic, id=name, key=name)
    assert status is not None
    return status.groups[GROUP]


def test_an_ack_and_its_result_are_there_together(consumers: Consumers) -> None:
    published = [(topic, f"{topic}-{number}") for number in range(MESSAGES) for topic in TOPICS]
    for topic, name in published:
        consumers.publish(topic, name, sleep=0.005)
    command = consumers.start(*TOPICS)
    for kill in range(1, KILLS + 1):
        wait_until(lambda: Result.objects.count() >= len(published) // (KILLS + 1) * kill)  # noqa: B023
        (pid,) = heartbeats().values()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: set(heartbeats().values()) - {pid})  # noqa: B023
        for topic, name in published:
            group = status_of(topic, name)
            assert (group.result is not None) == (group.state == "acked"), (name, group)
    wait_until(lambda: Result.objects.count() == len(published))
    command.terminate()
    assert command.wait() == 0, command.output
    attempts = {}
    for topic, name in published:
        group = status_of(topic, name)
        assert (group.state, group.result) == ("acked", {"id": name, "attempt": group.attempts})
        if topic == "kept-atomic":
            attempts[name] = group.attempts
    committed = {effect: count for effect, count in effects().items() if effect[0] in attempts}
    assert committed == dict.fromkeys(attempts.items(), 1)
