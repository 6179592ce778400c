"""A group's partitions add up to the group, and what matters comes first."""

from datetime import timedelta

from django.utils import timezone

from sqlqueue import Delivery, NewMessage, Reject, Retry, publish, publish_many
from sqlqueue.log.groups import register
from sqlqueue.models import Message
from sqlqueue.stats.survey import survey, survey_with_partitions
from tests.consuming import Consuming
from tests.logs import LOG


def test_they_add_up_to_the_group(consuming: Consuming) -> None:
    @consuming.consumer("t")
    def handle(delivery: Delivery) -> None:
        if delivery.payload % 5 == 0:
            raise Retry(delay=3600)
        if delivery.payload % 7 == 0:
            raise Reject("no")

    publish_many("t", [NewMessage(number, key=str(number % 17)) for number in range(100)])
    consuming.drain()
    publish_many("t", [NewMessage(1, key=str(number)) for number in range(40)])
    whole = survey(LOG).group("t", "default")
    partitions = survey_with_partitions(LOG, "t", "default")[1]
    assert whole is not None
    assert whole.failing > 0
    assert whole.waiting > 0
    for figure in ("lag", "in_flight", "failing", "waiting"):
        assert sum(getattr(one, figure) for one in partitions) == getattr(whole, figure), figure
    assert sorted(one.partition for one in partitions) == [0, 1, 2, 3]
    assert [one.lag for one in partitions] == sorted((one.lag for one in partitions), reverse=True)
    assert all(one.holder == "" for one in partitions)


def test_a_stuck_one_comes_first(consuming: Consuming) -> None:
    register(LOG, "default", "t")
    offset = publish("t", 1, key="a").offset
    stuck = Message.objects.get().partition
    Message.objects.update(created_at=timezone.now() - timedelta(minutes=10))
    keys = [NewMessage(number, key=str(number)) for number in range(50)]
    publish_many("t", keys)
    first, *others = survey_with_partitions(LOG, "t", "default")[1]
    assert (first.partition, first.oldest, first.stuck) == (stuck, offset, "standing")
    assert first.lag < sum(one.lag for one in others)
    assert not any(one.stuck for one in others)
