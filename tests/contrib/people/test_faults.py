"""kill -9 at any moment: what is handed over is one work item, and what is one is acked."""

import os
import signal

import pytest

from sqlqueue import get_status
from sqlqueue.contrib.people.models import WorkItem
from sqlqueue.models import Message
from tests.consumer_processes import GROUP, Consumers, effects, heartbeats
from tests.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
MESSAGES, KILLS = 40, 2


@pytest.mark.parametrize("topic", ["handed", "handed-atomic"])
def test_each_message_is_one_work_item(consumers: Consumers, topic: str) -> None:
    names = [f"m{number}" for number in range(MESSAGES)]
    for name in names:
        consumers.publish(topic, name, sleep=0.005)
    command = consumers.start(topic)
    for kill in range(1, KILLS + 1):
        wait_until(lambda: WorkItem.objects.count() >= MESSAGES // (KILLS + 1) * kill)  # noqa: B023
        (pid,) = heartbeats().values()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: set(heartbeats().values()) - {pid})  # noqa: B023
    wait_until(lambda: WorkItem.objects.count() == MESSAGES)
    command.terminate()
    assert command.wait() == 0, command.output
    items = {item.message_id: item for item in WorkItem.objects.all()}
    assert sorted(items) == sorted(names)
    for name in names:
        status = get_status(topic, id=name, key=name)
        assert status is not None
        assert status.groups[GROUP].state == "acked"
    assert not Message.objects.dead_letters().exists()
    if topic == "handed-atomic":
        assert effects() == {(name, int(item.reason)): 1 for name, item in items.items()}
