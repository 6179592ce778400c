"""The backlog of each group."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet

from example_project.flights.rules import TOPIC
from sqlqueue.models import DeliveryState, Message, Offset

COUNTED = 10_000
"""The most rows that are counted, so that the home page takes the same time however many there are."""


@dataclass(frozen=True, slots=True)
class GroupBacklog:
    """A group's backlog in a topic. Numbers of messages go up to COUNTED."""

    group: str
    topic: str
    position: int
    """The highest offset up to which it has read a partition."""
    unread: int
    unsettled: int
    """Messages at or below its positions that are in flight, failed or delayed."""
    dead_letters: int

    @property
    def is_more(self) -> bool:
        """Whether there are more unread messages than were counted."""
        return self.unread >= COUNTED


def group_backlogs() -> list[GroupBacklog]:
    """Return the backlogs of the flights' groups, without the partitions that a group has never leased."""
    groups: dict[str, list[Offset]] = defaultdict(list)
    for row in Offset.objects.filter(topic=TOPIC).order_by("consumer_group"):
        groups[row.consumer_group].append(row)
    return [
        GroupBacklog(
            group=group,
            topic=TOPIC,
            position=max(row.position for row in rows),
            unread=_unread(rows),
            unsettled=_counted(DeliveryState.objects.filter(consumer_group=group, topic=TOPIC, acked=False)),
            dead_letters=_counted(Message.objects.dead_letters(group, TOPIC)),
        )
        for group, rows in groups.items()
    ]


def _unread(offsets: list[Offset]) -> int:
    """Count the messages above a group's positions, with a query for each: one query would not use the log's index."""
    unread = 0
    for row in offsets:
        partition = Message.objects.filter(topic=row.topic, partition=row.partition, priority=row.priority)
        unread += _counted(partition.filter(offset__gt=row.position), COUNTED - unread)
        if unread >= COUNTED:
            break
    return unread


def _counted(rows: QuerySet[Any], most: int = COUNTED) -> int:
    return rows.order_by()[:most].count()
