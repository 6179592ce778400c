"""What is still to be delivered is counted from each partition's position on."""

from typing import Any

import pytest

from sqlqueue import NewMessage, publish_many
from sqlqueue.conf import settings as options
from sqlqueue.database.log import Log
from sqlqueue.log.topics import insert
from sqlqueue.models import ConsumerGroup, Message, Offset
from tests.soak import workload
from tests.soak.backlog import pending, unsettled
from tests.soak.workload import CROWDED, JOB_READERS

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]
READER = next(reader for reader in JOB_READERS if reader.topic == CROWDED)


def test_each_partition_has_a_position_of_its_own(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "ALL_READERS", [READER])
    insert(Log.of(options.DATABASE), READER.topic, 2)
    publish_many(READER.topic, [NewMessage(n, id=f"m{n}", key=f"k{n}") for n in range(60)])
    messages = list(Message.objects.filter(topic=READER.topic))
    assert pending() == {(READER.topic, READER.group, message.message_id) for message in messages}, "no process came"
    group = {"topic": READER.topic, "consumer_group": READER.group}
    ConsumerGroup.objects.create(**group, start=0)
    end = messages[-1].offset
    for partition, position in enumerate((end, 0)):
        marks = {"position": position, "offset_acked": position, "claimed_to": position, "fencing_token": 1}
        Offset.objects.create(**group, partition=partition, **marks)
    left = {message.message_id for message in messages if message.partition == 1}
    assert pending() == {(READER.topic, READER.group, id) for id in left}
    assert unsettled([READER]) == len(left) > 0
