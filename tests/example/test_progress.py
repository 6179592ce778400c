"""Settled messages are counted right whatever the positions and the delivery states are."""

import pytest

from example_project.flights.backlog import group_backlogs
from example_project.flights.progress import SettledCounter
from tests.factories import DeliveryStateFactory, MessageFactory, OffsetFactory

pytestmark = pytest.mark.django_db


def write_log(topic: str, *partitions: int) -> list[int]:
    """Write one message for each of the partitions, in this order, and return their offsets."""
    return [MessageFactory(topic=topic, partition=partition).offset for partition in partitions]


def stand(group: str, partition: int, position: int) -> None:
    OffsetFactory(consumer_group=group, topic="flights", partition=partition, position=position, offset_acked=0)


def remember(group: str, partition: int, offset: int, acked: bool) -> None:
    DeliveryStateFactory(consumer_group=group, topic="flights", partition=partition, message_offset=offset, acked=acked)


def test_a_topic_without_groups_has_nothing_settled() -> None:
    write_log("flights", 0, 0)
    counter = SettledCounter("flights")
    assert (counter.total, counter.settled()) == (2, {})


def test_messages_are_counted_and_not_offsets() -> None:
    write_log("other", 0, 1, 2)
    offsets = write_log("flights", 0, 1, 0, 1, 1)
    stand("aircraft", 0, offsets[2])
    stand("aircraft", 1, offsets[1])
    stand("delays", 1, offsets[4])
    counter = SettledCounter("flights")
    assert counter.total == 5
    assert counter.settled() == {"aircraft": 3, "delays": 3}


def test_a_failed_message_behind_the_position_is_not_settled() -> None:
    first, second, _ = write_log("flights", 0, 0, 0)
    stand("alerts", 0, second)
    remember("alerts", 0, first, acked=False)
    assert SettledCounter("flights").settled() == {"alerts": 1}
    assert [(row.unread, row.unsettled) for row in group_backlogs()] == [(1, 1)]


def test_a_message_acked_before_its_turn_is_settled() -> None:
    first, _, third = write_log("flights", 0, 0, 0)
    stand("alerts", 0, first)
    remember("alerts", 0, third, acked=True)
    assert SettledCounter("flights").settled() == {"alerts": 2}
