"""The reference of an assigned partition, and the options by which it is dispatched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlqueue.core.where import Where

GroupTopic = tuple[str, str]  # (group, topic)


@dataclass(frozen=True, slots=True)
class PartitionRef:
    """A partition as one group reads it, at one priority."""

    group: str
    topic: str
    partition: int
    priority: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """The options of a consumer that decide how its partitions are dispatched and settled. visibility_timeout,
    keep_results: seconds. urgency: of a message, by its headers as the database gave them; of what is in memory and may
    be dispatched, the highest goes first (only with ordering "none", and without batches). where: what it
    does not match is acked without being dispatched. commit_every: how many messages share a transaction (only with
    atomic)."""

    ordering: str = "key"
    max_attempts: int | None = 5  # None: no bound
    visibility_timeout: float = 60.0
    batch: bool = False
    batch_size: int = 100
    atomic: bool = False
    keep_results: float | None = None  # None: what the handler returns is dropped
    urgency: Callable[[Any], int] | None = None  # None: in the order of offsets
    where: Where | None = None  # None: all
    commit_every: int = 1

    @property
    def grouped(self) -> bool:
        """Handlers that get one delivery share transactions."""
        return self.commit_every > 1

    @property
    def together(self) -> bool:
        """Messages of several ordering queues are dispatched as one execution: a partition has one at a time."""
        return self.batch or self.grouped

    @property
    def most_together(self) -> int:
        """How many messages are dispatched together at most."""
        return self.commit_every if self.grouped else self.batch_size
