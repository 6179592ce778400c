"""What a group would read again or skip is counted before it is done."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from sqlqueue import NewMessage, publish_many
from sqlqueue.log.groups import register
from sqlqueue.models import Message
from sqlqueue.operations.move import MovePreview, move, preview
from sqlqueue.stats import counting
from tests.consuming import Consuming
from tests.logs import LOG


@pytest.fixture
def offsets(consuming: Consuming) -> list[int]:
    """The offsets of 40 messages of topic "t", of which group "g" has read 30; another topic's stand between them."""
    for number in range(40):
        publish_many("t", [NewMessage(number, key=str(number))])
        publish_many("other", [number])
    found = list(Message.objects.filter(topic="t").order_by("offset").values_list("offset", flat=True))
    register(LOG, "g", "t")
    move(LOG, "g", "t", found[29])
    return found


def test_of_a_group_that_goes_back(offsets: list[int]) -> None:
    assert preview(LOG, "g", "t", offsets[9]) == MovePreview(30, 20, 0, False)
    assert preview(LOG, "g", "t", 0) == MovePreview(40, 30, 0, False)
    assert preview(LOG, "g", "nowhere", 0) == MovePreview(0, 0, 0, False)


def test_of_a_group_that_goes_forward(offsets: list[int]) -> None:
    assert preview(LOG, "g", "t", offsets[34]) == MovePreview(5, 0, 5, False)


def test_of_one_partition(offsets: list[int]) -> None:
    whole = [preview(LOG, "g", "t", offsets[9], partition) for partition in range(4)]
    assert sum(count.again for count in whole) == 20
    for partition, count in enumerate(whole):
        mine = Message.objects.filter(topic="t", partition=partition)
        assert count.above == mine.filter(offset__gt=offsets[9]).count()
        assert count.again == mine.filter(offset__gt=offsets[9], offset__lte=offsets[29]).count()


def test_of_a_group_whose_partitions_stand_apart(offsets: list[int]) -> None:
    move(LOG, "g", "t", offsets[4], partition=2)
    count = preview(LOG, "g", "t", offsets[19])
    others = Message.objects.filter(topic="t").exclude(partition=2)
    assert count.again == others.filter(offset__gt=offsets[19], offset__lte=offsets[29]).count()
    in_it = Message.objects.filter(topic="t", partition=2)
    assert count.skipped == in_it.filter(offset__gt=offsets[4], offset__lte=offsets[19]).count()


def test_of_a_group_that_no_process_has_served_yet(offsets: list[int]) -> None:
    register(LOG, "late", "t")
    assert preview(LOG, "late", "t", offsets[9]) == MovePreview(30, 0, 10, False)


def test_many_are_estimated(consuming: Consuming, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "EXACT", 10_000)
    publish_many("t", [NewMessage(number, key=str(number % 50)) for number in range(40_000)])
    low = Message.objects.order_by("offset").values_list("offset", flat=True)[10_000]
    Message.objects.filter(offset__lt=low).delete()
    register(LOG, "g", "t")
    count = preview(LOG, "g", "t", 0)
    assert count.estimated
    assert count.above == pytest.approx(30_000, rel=0.1)


def test_the_number_of_statements_is_bounded(settings, consuming: Consuming) -> None:
    settings.SQLQUEUE = {"TOPICS": {"wide": {"partitions": 200}}}
    register(LOG, "g", "wide")
    publish_many("wide", [NewMessage(number, key=str(number)) for number in range(2_000)])
    move(LOG, "g", "wide", Message.objects.order_by("offset")[1_000].offset)
    with CaptureQueriesContext(connection) as captured:
        count = preview(LOG, "g", "wide", 1)
    assert count.above == pytest.approx(1_999, abs=1)
    assert len(captured) <= 11
