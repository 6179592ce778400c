"""The order in which tasks run, and the topics that hold them."""

import json
import random
import subprocess
import sys
from typing import Any

import pytest

from sqlqueue import publish
from sqlqueue.conf import settings as queue_settings
from sqlqueue.consumers.declare.registry import registry
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log.topic_options import all_differences
from sqlqueue.models import Message, Topic
from sqlqueue.tasks import queues
from sqlqueue.tasks.enqueueing import stream_of
from sqlqueue.testing import drain
from tests.consuming import Consuming
from tests.logs import LOG
from tests.processes import environment
from tests.tasks.declared import TASKS, samples

pytestmark = pytest.mark.django_db(transaction=True)


def test_ten_streams_hold_all_priorities_in_order() -> None:
    streams = [stream_of(priority, 10) for priority in range(100, -101, -1)]
    assert streams == sorted(streams)
    assert set(streams) == set(range(10))
    assert {streams.count(stream) for stream in range(10)} <= {20, 21}
    assert {stream_of(priority, 1) for priority in (-100, 0, 100)} == {0}
    assert [stream_of(priority, 3) for priority in (100, 34, 33, 0, -33, -34, -100)] == [0, 0, 1, 1, 1, 2, 2]


def test_tasks_run_by_exact_priority_over_all_partitions(consuming: Consuming, settings: Any) -> None:
    settings.TASKS = TASKS
    settings.SQLQUEUE = {**settings.SQLQUEUE, "PARTITIONS": 3}
    queues.add_consumers(registry)
    priorities = list(range(-100, 101, 5)) * 2
    random.Random(13).shuffle(priorities)
    for priority in priorities:
        samples.note.using(priority=priority).enqueue(priority)
    consuming.drain(threads=1)
    assert sorted(priorities, reverse=True) == samples.RAN


def test_equal_priorities_of_a_partition_run_in_the_order_of_their_enqueueing(settings: Any) -> None:
    settings.SQLQUEUE = {"PARTITIONS": 1}
    for number in range(20):
        samples.note.enqueue(number)
    drain()
    assert list(range(20)) == samples.RAN


def test_a_task_that_came_later_and_is_more_urgent_overtakes(settings: Any) -> None:
    settings.SQLQUEUE = {"PARTITIONS": 1}
    for priority in (1, 2, 3):
        samples.note.using(priority=priority).enqueue(priority)
    drain()
    assert samples.RAN == [3, 2, 1]


def test_a_message_without_a_priority_is_run_like_priority_0() -> None:
    assert queues.urgency(None) == 0
    assert queues.urgency('{"priority": "x"}') == 0
    assert queues.urgency('{"priority": -7}') == -7
    assert queues.urgency({"priority": 7}) == 7


# -- topics -----------------------------------------------------------------------------------------------------------


def test_queues_are_topics_with_ten_priorities() -> None:
    samples.note.enqueue()
    samples.special.enqueue()
    assert list(Topic.objects.order_by("name").values_list("name", "priorities")) == [
        ("tasks.default", 10),
        ("tasks.special", 10),
    ]
    assert not list(all_differences(LOG, ["partitions", "priorities"]))


def test_queues_need_no_declaration_among_strict_topics(settings: Any) -> None:
    settings.SQLQUEUE = {"TOPICS": {"orders": {}, "tasks.special": {"partitions": 3}}}
    samples.note.enqueue()
    samples.special.enqueue()
    assert Topic.objects.get(name="tasks.special").partitions == 3
    assert Topic.objects.get(name="tasks.special").priorities == 10
    with pytest.raises(ConfigurationError):
        publish("tasks.other", {})
    samples.fail.enqueue("and its dead letters")
    assert drain() == 3
    assert Message.objects.dead_letters(topic="tasks.default").count() == 1


def test_a_topic_may_have_other_priorities(settings: Any) -> None:
    settings.SQLQUEUE = {"TOPICS": {"tasks.default": {"partitions": 1, "priorities": 2}}}
    for priority in (-100, 100, 0, 1, -1):
        samples.note.using(priority=priority).enqueue(priority)
    assert set(Message.objects.values_list("priority", flat=True)) == {0, 1}
    drain()
    assert samples.RAN == [100, 1, 0, -1, -100]


def test_consumers_follow_the_setting(settings: Any) -> None:
    registry.discover()
    topics = {topic for group, topic in registry.consumers if group == "tasks"}
    assert topics == {"tasks.default", "tasks.special"}
    settings.TASKS = {"other": {"BACKEND": "tests.tasks.subclass.OwnBackend", "QUEUES": ("more",)}}
    registry.discover()
    topics = {topic for group, topic in registry.consumers if group == "tasks"}
    assert topics == {"tasks.more"}
    settings.TASKS = {"default": {"BACKEND": "no.such.Backend"}, "broken": None}
    registry.discover()
    assert not {topic for group, topic in registry.consumers if group == "tasks"}
    assert not queue_settings.declares("tasks.default")


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"QUEUES": []}, "must list the queues"),
        ({"QUEUES": "default"}, "must list the queues"),
        ({"QUEUES": ["a b"]}, "is not a name"),
        ({"QUEUES": ["a" * 95]}, "is the most"),
        ({"QUEUES": ["a_dlq"]}, "dead-letter"),
        ({"OPTIONS": []}, "must be a dict"),
    ],
)
def test_a_wrong_entry_is_an_error(entry: dict[str, Any], said: str, settings: Any) -> None:
    from sqlqueue.tasks.queues import check_tasks

    settings.TASKS = {"default": {"BACKEND": "sqlqueue.tasks.SqlQueueBackend", **entry}}
    (error,) = check_tasks()
    assert said in error.msg
    assert error.id == "sqlqueue.E027"


def test_an_alias_that_is_too_long_is_an_error(settings: Any) -> None:
    settings.TASKS = {"a" * 101: {"BACKEND": "sqlqueue.tasks.SqlQueueBackend"}}
    (problem,) = queues.problems()
    assert "101 characters; 100 is the most" in problem


def test_without_the_interface_the_check_says_what_to_install(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    monkeypatch.setattr(queues, "_has_interface", lambda: False)
    assert any("pip install" in problem for problem in queues.problems())
    registry.discover()
    assert not [topic for group, topic in registry.consumers if group == "tasks"]


@pytest.mark.once
def test_tasks_are_declared_before_the_apps_are_ready() -> None:
    code = "import tests.tasks.samples as samples; from django.apps import apps; assert not apps.ready"
    run = subprocess.run([sys.executable, "-c", code], env=environment(TASKS=json.dumps(TASKS)), capture_output=True)
    assert run.returncode == 0, run.stderr.decode()
