"""What the tables say of one group in one partition, as everybody sees it at one moment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from sqlqueue.models import (
    BlockedRange,
    ConsumerGroup,
    DeliveryState,
    Message,
    Offset,
    PartitionLease,
    dead_letter_topic,
)
from tests.app.models import Effect


class State(NamedTuple):
    """A delivery-state row."""

    acked: bool
    in_flight: int
    count: int


@dataclass(frozen=True)
class Tables:
    """P, W, C and T are the letters of docs/protocol.md; no offset row yet: P = W = C = S."""

    position: int = 0
    watermark: int = 0
    claimed: int = 0
    token: int = 0
    holder: str = ""
    lease_token: int = 0
    rows: dict[int, State] = field(default_factory=dict)
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)  # of keys: low and high
    keys: dict[int, str] = field(default_factory=dict)
    messages: frozenset[int] = frozenset()
    effects: tuple[int, ...] = ()  # of atomic handlers: the offsets, once for each committed transaction
    dead: tuple[int, ...] = ()  # the offsets of which there is a dead letter

    def settled(self, offset: int) -> bool:
        """Tell whether this message is never dispatched any more."""
        row = self.rows.get(offset)
        return row.acked if row else offset <= self.position and not self.waits_behind(offset)

    def waits_behind(self, offset: int) -> bool:
        """Tell whether a message lies in its key's range."""
        low, high = self.ranges.get(self.keys.get(offset, ""), (0, 0))
        return low < offset <= high

    @property
    def lowest(self) -> int:
        """Where the watermark belongs."""
        rows = [offset - 1 for offset, row in self.rows.items() if not row.acked and offset <= self.position]
        return min([self.position, *rows, *(low for low, _ in self.ranges.values())])

    @property
    def standing(self) -> tuple[object, ...]:
        """All that a settle writes."""
        return self.position, self.watermark, self.claimed, self.rows, self.ranges


def read(topic: str, group: str) -> Tables:
    """Read everything; no actor moves meanwhile."""
    mine = {"topic": topic, "consumer_group": group}
    lease = PartitionLease.objects.get(**mine)
    offset = Offset.objects.filter(**mine).first()
    if offset is None:
        start = ConsumerGroup.objects.get(**mine).start
        offset = Offset(position=start, offset_acked=start, claimed_to=start, fencing_token=lease.fencing_token)
    states = DeliveryState.objects.filter(**mine).values_list("message_offset", "acked", "in_flight", "retry_count")
    letters = Message.objects.filter(topic=dead_letter_topic(topic), failed_group=group)
    ranges = BlockedRange.objects.filter(**mine).values_list("partition_key", "low", "high")
    keys = dict(Message.objects.filter(topic=topic).values_list("offset", "partition_key"))
    return Tables(
        position=offset.position,
        watermark=offset.offset_acked,
        claimed=offset.claimed_to,
        token=offset.fencing_token,
        holder=lease.holder,
        lease_token=lease.fencing_token,
        rows={offset: State(*row) for offset, *row in states},
        ranges={key: (low, high) for key, low, high in ranges},
        keys=keys,
        messages=frozenset(keys),
        effects=tuple(int(value) for value in Effect.objects.filter(name=topic).values_list("value", flat=True)),
        dead=tuple(letters.values_list("original_offset", flat=True)),
    )
