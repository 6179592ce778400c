"""The reference of an assigned partition, and the options by which it is dispatched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
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
    atomic). grouped: handlers that get one delivery share transactions; together: messages of several ordering queues
    are dispatched as one execution, `most_together` at most, and a partition has one at a time."""

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

    grouped: bool = field(init=False)
    together: bool = field(init=False)
    most_together: int = field(init=False)

    def __post_init__(self) -> None:
        grouped = self.commit_every > 1
        object.__setattr__(self, "grouped", grouped)
        object.__setattr__(self, "together", self.batch or grouped)
        object.__setattr__(self, "most_together", self.commit_every if grouped else self.batch_size)
