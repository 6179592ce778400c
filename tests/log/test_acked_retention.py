"""retention_from="acked": a message is collected so long after the last group has settled it."""

from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F

from sqlqueue import NewMessage, publish, publish_many
from sqlqueue.consumers.background.duties import CollectorTask
from sqlqueue.database.horizon import Horizon, highest_offset
from sqlqueue.log import groups, retention
from sqlqueue.log.collect import collect
from sqlqueue.models import AckedMark, Message, Offset
from sqlqueue.operations.move import move
from sqlqueue.operations.topics import purge
from tests.consuming import QUICK, Consuming
from tests.logs import LOG

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = 3600.0
ACKED = {**QUICK, "PARTITIONS": 1, "TOPICS": {"t": {"retention": HOUR, "retention_from": "acked"}, "u": {}}}


@pytest.fixture(autouse=True)
def acked(consuming: Consuming, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let only the test collect."""
    settings.SQLQUEUE = ACKED
    monkeypatch.setattr(CollectorTask, "run_once", lambda self: False)


def run_collection() -> int:
    horizon = Horizon(LOG)
    horizon.wait()
    return collect(LOG, horizon).messages


def left(topic: str = "t") -> list[Any]:
    return [row.payload for row in Message.objects.filter(topic=topic).order_by("offset")]


def pass_time(seconds: float) -> None:
    """Let everything be so much older."""
    past = timedelta(seconds=seconds)
    Message.objects.update(created_at=F("created_at") - past)
    AckedMark.objects.update(marked_at=F("marked_at") - past)


def test_it_counts_from_the_ack_and_not_from_publishing(consuming: Consuming) -> None:
    consuming.consumer("t", lambda delivery: None)
    publish_many("t", [1, 2])
    pass_time(10 * HOUR)
    consuming.drain()
    assert run_collection() == 0
    pass_time(HOUR - 60)
    assert run_collection() == 0
    publish("t", 3)
    consuming.drain()
    run_collection()  # in which the later one is marked
    pass_time(120)
    assert run_collection() == 2
    assert left() == [3]
    pass_time(HOUR)
    assert run_collection() == 1


def test_it_counts_from_the_last_groups_ack(consuming: Consuming) -> None:
    for group in ("default", "late"):
        consuming.consumer("t", lambda delivery: None, group=group)
        groups.register(LOG, group, "t")
    publish("t", 1)
    consuming.drain("default")
    run_collection()
    pass_time(2 * HOUR)
    consuming.drain("late")
    assert run_collection() == 0
    pass_time(HOUR + 60)
    assert run_collection() == 1


def test_without_any_group_it_counts_from_when_it_was_first_seen(consuming: Consuming) -> None:
    publish("t", 1)
    assert run_collection() == 0
    pass_time(HOUR + 60)
    assert run_collection() == 1


@pytest.mark.parametrize("how", ["moved back", "a new group", "a lower watermark"])
def test_what_is_read_again_counts_anew(consuming: Consuming, how: str) -> None:
    consuming.consumer("t", lambda delivery: None)
    publish_many("t", [1, 2])
    consuming.drain()
    run_collection()
    pass_time(HOUR - 60)
    if how == "a lower watermark":
        Offset.objects.update(offset_acked=0, position=0, claimed_to=0)
        run_collection()
    elif how == "moved back":
        move(LOG, "default", "t", 0)
    else:
        consuming.consumer("t", lambda delivery: None, group="new")
        groups.register(LOG, "new", "t")
    assert not AckedMark.objects.exists()
    consuming.drain()
    pass_time(120)
    assert run_collection() == 0
    pass_time(HOUR + 60)
    assert run_collection() == 2


def test_a_stream_has_a_bounded_number_of_marks(consuming: Consuming, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "MARKS", 4)
    consuming.consumer("t", lambda delivery: None)
    most = 0
    for number in range(24):
        publish("t", number)
        consuming.drain()
        run_collection()
        most = max(most, AckedMark.objects.count())
        pass_time(HOUR / 12)
    assert 4 <= most <= 6
    assert 12 <= len(left()) <= 17  # of the last hour, a quarter more, and one


def test_a_purge_does_not_wait_for_it(consuming: Consuming) -> None:
    consuming.consumer("t", lambda delivery: None)
    publish_many("t", [1, 2])
    consuming.drain()
    purge(LOG, "t", through=highest_offset(LOG))
    publish("t", 3)
    consuming.drain()
    run_collection()
    assert left() == [3]


def test_each_partition_and_priority_has_marks_of_its_own(consuming: Consuming, settings: Any) -> None:
    options = {**ACKED["TOPICS"]["t"], "partitions": 2, "priorities": 2}  # type: ignore[index]
    settings.SQLQUEUE = {**ACKED, "TOPICS": {"t": options}}
    consuming.consumer("t", lambda delivery: None)
    messages = [NewMessage(n, key=str(n), priority=n % 2) for n in range(40)]
    publish_many("t", messages)
    consuming.drain()
    run_collection()
    assert AckedMark.objects.count() == 4
    pass_time(HOUR + 60)
    assert run_collection() == 40


def test_other_topics_count_from_publishing_and_have_no_marks(consuming: Consuming, settings: Any) -> None:
    consuming.consumer("t", lambda delivery: None)
    consuming.consumer("u", lambda delivery: None)
    publish("t", 1)
    publish("u", 1)
    pass_time(8 * 24 * HOUR)
    consuming.drain()
    assert run_collection() == 1
    assert (left(), left("u")) == ([1], [])
    assert AckedMark.objects.count() == 1
    settings.SQLQUEUE = {**ACKED, "TOPICS": {"t": {"retention": HOUR}}}
    assert run_collection() == 1
