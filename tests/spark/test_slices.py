"""A Spark stream holds every slice of a group that shares its partitions."""

import pytest

from sqlqueue import publish_many
from sqlqueue.models import ConsumerGroup, Message, Offset
from sqlqueue.spark.membership import Membership
from tests.leases.test_whole_partitions import GROUP, SLICES, TOPIC, holders
from tests.leases.test_whole_partitions import shared as shared

pytestmark = [pytest.mark.django_db(transaction=True)]


def test_a_stream_holds_them_all_and_moves_each() -> None:
    publish_many(TOPIC, range(40, 80))
    last = max(Message.objects.values_list("offset", flat=True))
    stream = Membership("default", GROUP, [TOPIC], "earliest", 30)
    try:
        assert holders() == {stream.name}
        first_new = Message.objects.order_by("offset").values_list("offset", flat=True)[40]
        assert stream.settled == first_new - 1
        stream.settle(last, last)
    finally:
        stream.leave()
    assert set(Offset.objects.values_list("position", "offset_acked")) == {(last, last)}
    assert ConsumerGroup.objects.get().sharing == SLICES
