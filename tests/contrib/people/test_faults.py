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
TOPICS = ("handed", "handed-atomic")
MESSAGES, KILLS = 40, 2


def test_each_message_is_one_work_item(consumers: Consumers) -> None:
    published = {f"{topic}-{number}": topic for number in range(MESSAGES) for topic in TOPICS}
    for name, topic in published.items():
        consumers.publish(topic, name, sleep=0.005)
    command = consumers.start(*TOPICS)
    for kill in range(1, KILLS + 1):
        wait_until(lambda: WorkItem.objects.count() >= len(published) // (KILLS + 1) * kill)  # noqa: B023
        (pid,) = heartbeats().values()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: set(heartbeats().values()) - {pid})  # noqa: B023
    wait_until(lambda: WorkItem.objects.count() == len(published))
    command.terminate()
    assert command.wait() == 0, command.output
    items = {item.message_id: item for item in WorkItem.objects.all()}
    assert sorted(items) == sorted(published)
    for name, topic in published.items():
        status = get_status(topic, id=name, key=name)
        assert status is not None
        assert status.groups[GROUP].state == "acked"
    assert not Message.objects.dead_letters().exists()
    atomic = [name for name, topic in published.items() if topic == "handed-atomic"]
    committed = {effect: count for effect, count in effects().items() if effect[0] in atomic}
    assert committed == {(name, int(items[name].reason)): 1 for name in atomic}
