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
MESSAGES, KILLS = 60, 2


def status_of(topic: str, name: str) -> GroupStatus:
    status = get_status(topic, id=name, key=name)
    assert status is not None
    return status.groups[GROUP]


@pytest.mark.parametrize("topic", ["kept", "kept-atomic"])
def test_an_ack_and_its_result_are_there_together(consumers: Consumers, topic: str) -> None:
    names = [f"m{number}" for number in range(MESSAGES)]
    for name in names:
        consumers.publish(topic, name, sleep=0.005)
    command = consumers.start(topic)
    for kill in range(1, KILLS + 1):
        wait_until(lambda: Result.objects.count() >= MESSAGES // (KILLS + 1) * kill)  # noqa: B023
        (pid,) = heartbeats().values()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: set(heartbeats().values()) - {pid})  # noqa: B023
        for name in names:
            group = status_of(topic, name)
            assert (group.result is not None) == (group.state == "acked"), (name, group)
    wait_until(lambda: Result.objects.count() == MESSAGES)
    command.terminate()
    assert command.wait() == 0, command.output
    results = {}
    for name in names:
        group = status_of(topic, name)
        assert (group.state, group.result) == ("acked", {"id": name, "attempt": group.attempts})
        results[name] = group.attempts
    if topic == "kept-atomic":
        assert effects() == dict.fromkeys(results.items(), 1)
