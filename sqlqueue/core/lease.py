"""What the threads of a consumer process share about a partition: the lease under which it is held, and nothing else.

The partition's state (`partition`) belongs to the control thread. Attempts, executions and plans refer to the lease.
"""

from __future__ import annotations

from typing import Any

from sqlqueue.core.partition.ref import PartitionRef


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
