"""How far behind each group is."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from django.db.models import Q, QuerySet

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
    positions: dict[str, int] = defaultdict(int)
    unread: dict[str, Q] = defaultdict(Q)
    rows = Offset.objects.filter(topic=TOPIC).order_by("consumer_group")
    for row in rows:
        positions[row.consumer_group] = max(positions[row.consumer_group], row.position)
        unread[row.consumer_group] |= Q(partition=row.partition, priority=row.priority, offset__gt=row.position)
    return [
        GroupStanding(
            group=group,
            topic=TOPIC,
            position=position,
            unread=_counted(Message.objects.filter(unread[group], topic=TOPIC)),
            unsettled=_counted(DeliveryState.objects.filter(consumer_group=group, topic=TOPIC, acked=False)),
            dead_letters=_counted(Message.objects.dead_letters(group, TOPIC)),
        )
        for group, position in positions.items()
    ]


def _counted(rows: QuerySet[Any]) -> int:
    return rows.order_by()[:COUNTED].count()
