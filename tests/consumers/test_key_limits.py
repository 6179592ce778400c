"""A rate limit of each key: what it holds back is charged nothing, stops no other key, and outlasts its process."""

from typing import Any

import pytest

from sqlqueue import NewMessage, publish_many
from sqlqueue.conf import settings as options
from sqlqueue.database.log import Log
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log.groups import override_flow
from sqlqueue.models import BlockedRange, DeliveryState, Message
from sqlqueue.operations.reschedule import reschedule
from sqlqueue.stats.message_status import status_of
from tests.consuming import QUICK, Consuming, offset_row, watermark
from tests.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
GROUP_TOPIC = {"group": "default", "topic": "calls"}


def test_a_key_that_waits_stops_no_other_and_goes_on_in_order_when_the_limit_is_lifted(
    consuming: Consuming, settings: Any
) -> None:
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1, "HEARTBEAT_INTERVAL": 0.5}
    done: list[tuple[str, int, int]] = []
    consuming.consumer(
        "calls",
        lambda delivery: done.append((delivery.key, delivery.payload, delivery.attempt)),
        rate_limit_per_key="1/d",
        batch_size=5,
    )
    publish_many("calls", [NewMessage(n, key="much") for n in range(100)])
    publish_many("calls", [NewMessage(0, key=f"k{n}") for n in range(100)])
    publish_many("calls", [NewMessage(n) for n in range(10)])
    first = consuming.start()
    wait_until(lambda: len(done) == 111)
    wait_until(lambda: offset_row("calls").position >= Message.objects.latest("offset").offset)
    assert watermark("calls") == Message.objects.earliest("offset").offset
    assert BlockedRange.objects.get().partition_key == "much"
    assert list(DeliveryState.objects.filter(acked=False).values_list("retry_count", "in_flight")) == [(0, 0)]
    head = Message.objects.get(offset=DeliveryState.objects.get(acked=False).message_offset)
    assert status_of(Log.of(options.DATABASE), head).groups["default"].state == "limited"
    first.stop()
    second = consuming.start()  # it knows nothing of what started in the other, but the row does
    publish_many("calls", [NewMessage(1, key="k1")])
    wait_until(lambda: done[-1] == ("k1", 1, 1))
    wait_until(lambda: second.subscriber.settled)
    assert len(done) == 112
    second.stop()
    third = consuming.start()
    publish_many("calls", [NewMessage(n, key="new") for n in range(2)])
    wait_until(lambda: ("new", 0, 1) in done)
    wait_until(lambda: third.subscriber.settled)
    override_flow(Log.of(options.DATABASE), **GROUP_TOPIC, values={"rate_limit_per_key": None})
    wait_until(lambda: ("new", 1, 1) in done)
    assert done.count(("new", 0, 1)) == 1
    held_back = DeliveryState.objects.filter(acked=False).values_list("message_offset", flat=True)
    reschedule(Log.of(options.DATABASE), **GROUP_TOPIC, offsets=held_back)
    wait_until(lambda: len(done) == 213)
    assert [number for key, number, attempt in done if key == "much" and attempt == 1] == list(range(100))


def test_what_is_too_late_for_its_handler_uses_nothing_of_its_keys_rate(consuming: Consuming) -> None:
    done: list[Any] = []
    consuming.consumer("calls", lambda delivery: done.append(delivery.payload), rate_limit_per_key="1/d")
    publish_many("calls", [NewMessage(n, key="a", expires=0.001) for n in range(10)])
    publish_many("calls", [NewMessage("in time", key="a")])
    consuming.start()
    wait_until(lambda: done == ["in time"])
    assert Message.objects.dead_letters().count() == 10


@pytest.mark.once
@pytest.mark.parametrize("more", [{"ordering": "none"}, {"ordering": "partition"}, {"batch": True}])
def test_it_needs_keys_in_order_and_no_batch(consuming: Consuming, more: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match='needs ordering="key"'):
        consuming.consumer("calls", print, rate_limit_per_key="1/s", **more)
