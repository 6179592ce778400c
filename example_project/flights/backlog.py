"""How far behind each group is."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet

from example_project.flights.rules import TOPIC
from sqlqueue.models import DeliveryState, Message, Offset

COUNTED = 10_000
"""Rows are counted up to here, so that the home page costs the same however many there are."""


@dataclass(frozen=True, slots=True)
class GroupStanding:
    """Where a group stands in a topic. Numbers of messages go up to COUNTED."""

    group: str
    topic: str
    position: int
    """The highest offset up to which it has read a partition."""
    unread: int
    unsettled: int
    """Messages behind its positions that are in flight, failed or delayed."""
    dead_letters: int

    @property
    def is_more(self) -> bool:
        """Whether there are more unread messages than were counted."""
        return self.unread >= COUNTED


def group_standings() -> list[GroupStanding]:
    """Return where the flights' groups stand; a partition that a group has never leased is not counted."""
    groups: dict[str, list[Offset]] = defaultdict(list)
    for row in Offset.objects.filter(topic=TOPIC).order_by("consumer_group"):
        groups[row.consumer_group].append(row)
    return [
        GroupStanding(
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
    """Count the messages above a group's positions, a query for each: together they would not use the log's index."""
    unread = 0
    for row in offsets:
        stream = Message.objects.filter(topic=row.topic, partition=row.partition, priority=row.priority)
        unread += _counted(stream.filter(offset__gt=row.position), COUNTED - unread)
        if unread >= COUNTED:
            break
    return unread


def _counted(rows: QuerySet[Any], most: int = COUNTED) -> int:
    return rows.order_by()[:most].count()
