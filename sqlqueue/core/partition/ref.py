"""The reference of an assigned partition, its lease, and the options by which it is dispatched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlqueue.core.filters import Filter


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
    where: Filter | None = None  # None: all
    commit_every: int = 1

    grouped: bool = field(init=False)
    together: bool = field(init=False)
    most_together: int = field(init=False)

    def __post_init__(self) -> None:
        grouped = self.commit_every > 1
        object.__setattr__(self, "grouped", grouped)
        object.__setattr__(self, "together", self.batch or grouped)
        object.__setattr__(self, "most_together", self.commit_every if grouped else self.batch_size)


class HeldLease:
    """The lease of one assigned partition, as its holder knows it.

    id: of the offset row; token: the fencing token; server: where it was acquired (database.server_identity), None
    if nothing is to be compared; holder: the subscriber that holds it; subscription: what the holder has it for, an
    object of its own (consumers.engine.subscription); deadline: monotonic seconds at which the lease ends unless it
    is renewed; lost: the partition has another owner or was released, so no outcome counts any more. Every thread
    may read them. After the control thread has acquired the lease, only the lease renewer moves the deadline; only
    the control thread sets `lost`. progress: what handlers have reported last, by attempt; handlers' threads put it
    in, the control thread takes it out. stored_progress: the offsets whose progress is stored.
    The latter is of the control thread.
    """

    __slots__ = (
        "deadline",
        "holder",
        "id",
        "lost",
        "progress",
        "ref",
        "server",
        "stored_progress",
        "subscription",
        "token",
    )

    def __init__(self, ref: PartitionRef, id: int, token: int):
        self.ref, self.id, self.token = ref, id, token
        self.server: Any = None
        self.subscription: Any = None
        self.holder = ""
        self.deadline = float("inf")
        self.lost = False
        self.progress: dict[Any, Any] = {}
        self.stored_progress: set[int] = set()

    @property
    def labels(self) -> dict[str, Any]:
        """Group, topic and partition, for signals and log lines."""
        return {"group": self.ref.group, "topic": self.ref.topic, "partition": self.ref.partition}
