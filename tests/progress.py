"""The progress of groups in the tables, for waiting until everything is settled."""

from sqlqueue import publish
from sqlqueue.conf import settings
from sqlqueue.core.keys import partition_of
from sqlqueue.core.partition.ref import PartitionRef
from sqlqueue.database.log import Log
from sqlqueue.log import status
from sqlqueue.log.fetch import beyond
from sqlqueue.models import (
    BlockedRange,
    ConsumerGroup,
    DeliveryState,
    Message,
    Offset,
    ScheduledMessage,
    Topic,
    dead_letter_topic,
)
from tests.processes import wait_until


def unread_streams(log: Log, group: str, topic: str) -> list[PartitionRef]:
    """Return the partitions of a group that have messages above its position."""
    return beyond(log, status._streams(log, group, topic, "position")[0])


def settled(topic: str, group: str) -> bool:
    """Tell whether every message of the topic is settled for the group, and its position past them all."""
    if not ConsumerGroup.objects.filter(topic=topic, consumer_group=group).exists():
        return False
    # In the order in which a message passes through the tables, so that none is missed between two looks.
    if ScheduledMessage.objects.filter(topic=topic).exists() or unread_streams(Log.of(settings.DATABASE), group, topic):
        return False
    if BlockedRange.objects.filter(topic=topic, consumer_group=group).exists():
        return False
    return not DeliveryState.objects.filter(topic=topic, consumer_group=group, acked=False).exists()


def wait_until_settled(topic: str, group: str, timeout: float = 60.0) -> None:
    """Return when everything is settled; raise AssertionError, with the group's progress, after so many seconds."""
    wait_until(lambda: settled(topic, group), timeout, lambda: progress_of(topic, group))


def progress_of(topic: str, group: str) -> str:
    """Return a group's progress, for a test's failure."""
    states = DeliveryState.objects.filter(topic=topic, consumer_group=group)
    offsets = Offset.objects.filter(topic=topic, consumer_group=group)
    rows = list(states.values_list("partition", "message_offset", "acked", "in_flight", "retry_count")[:20])
    positions = list(offsets.values_list("partition", "position", "offset_acked", "claimed_to", "fencing_token"))
    unread = [address.partition for address in unread_streams(Log.of(settings.DATABASE), group, topic)]
    return f"unread partitions {unread}; states {rows} of {states.count()}; offsets {positions}"


def keys_of_partitions(partitions: int) -> list[str]:
    """Return a key for each partition, in their order."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < partitions:
        found.setdefault(partition_of(f"key-{number}", partitions), f"key-{number}")
        number += 1
    return [found[partition] for partition in range(partitions)]


def let_a_round_pass(topic: str, *groups: str, name: str = "round") -> set[str]:
    """Publish one more message to every partition and wait until the groups have settled them; return their ids.

    Whatever a group would have delivered twice, it has read again by then.
    """
    keys = keys_of_partitions(Topic.objects.get(name=topic).partitions)
    ids = {publish(topic, {}, key=key, id=f"{name}-{key}").id for key in keys}
    for group in groups:
        wait_until_settled(topic, group)
    return ids


def dead_letter_offsets(topic: str, group: str) -> list[int]:
    """Return the offsets that a group's dead letters had in their topic."""
    dead = Message.objects.filter(topic=dead_letter_topic(topic), failed_group=group)
    return sorted(dead.values_list("original_offset", flat=True))
