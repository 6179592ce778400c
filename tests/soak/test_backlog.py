"""What is still to be delivered is counted for each slice of a shared partition by itself."""

from typing import Any

import pytest

from sqlqueue import NewMessage, publish_many
from sqlqueue.conf import settings as options
from sqlqueue.core.slices import slice_of
from sqlqueue.log.topics import create
from sqlqueue.models import ConsumerGroup, Message, Offset
from tests.soak import workload
from tests.soak.backlog import pending, unsettled

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]
SLICED = next(reader for reader in workload.JOB_READERS if reader.is_shared)


def test_each_slice_has_a_position_of_its_own(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "ALL_READERS", [SLICED])
    create(options.DATABASE, SLICED.topic, workload.partitions(SLICED.topic))
    publish_many(SLICED.topic, [NewMessage(n, id=f"m{n}", key=f"k{n}") for n in range(60)])
    messages = list(Message.objects.filter(topic=SLICED.topic))
    assert pending() == {(SLICED.topic, SLICED.group, message.message_id) for message in messages}, "no process came"
    group = {"topic": SLICED.topic, "consumer_group": SLICED.group}
    ConsumerGroup.objects.create(**group, start=0, sharing=3)
    end = messages[-1].offset
    for partition in range(workload.partitions(SLICED.topic)):
        for slice, position in enumerate((end, 0, end)):
            marks = {"position": position, "offset_acked": position, "claimed_to": position, "fencing_token": 1}
            Offset.objects.create(**group, partition=partition, slice=slice, slices=3, **marks)
    left = {message.message_id for message in messages if slice_of(message.offset, 3) == 1}
    assert pending() == {(SLICED.topic, SLICED.group, id) for id in left}
    assert unsettled([SLICED]) == len(left) > 0
