"""How a batch stands, for those who wait for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlqueue.contrib.batches import ends
from sqlqueue.contrib.batches.models import Batch, BatchPart
from sqlqueue.database.log import Log, home_log
from sqlqueue.twins import refuse_in_async


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """How a batch stands. total: its members, with those of its chain's steps so far, once for each group that settles
    them; done: those acked; failed: those that are dead letters and were not replayed. Times are aware, None for what
    has not come about."""

    id: str
    name: str
    total: int
    done: int
    failed: int
    created_at: datetime
    deadline_at: datetime | None
    sealed_at: datetime | None
    failed_at: datetime | None
    finished_at: datetime | None
    succeeded_at: datetime | None
    cancelled_at: datetime | None

    @property
    def pending(self) -> int:
        """How many members are not settled yet."""
        return max(0, self.total - self.done - self.failed)

    @property
    def state(self) -> str:
        """cancelled, succeeded, finished (with dead letters, or without: see failed), running, or open: not sealed."""
        if self.cancelled_at is not None:
            return "cancelled"
        if self.finished_at is not None:
            return "finished" if self.succeeded_at is None else "succeeded"
        return "open" if self.sealed_at is None else "running"


def get_batch(id: str) -> BatchStatus | None:
    """Return how a batch stands; None for an unknown id, and for one whose retention is over. Two statements."""
    refuse_in_async("get_batch", "await sync_to_async(get_batch)(…)")
    return statuses(home_log(), [id]).get(id)


def cancel_batch(id: str) -> bool:
    """Publish no callback of a batch any more; its members are delivered all the same. False: it was over already, or
    there is none."""
    refuse_in_async("cancel_batch", "await sync_to_async(cancel_batch)(…)")
    return ends.cancel(home_log(), id)


def statuses(log: Log, ids: Sequence[str]) -> dict[str, BatchStatus]:
    """Return how batches stand, by id. Two statements."""
    batches = list(Batch.objects.using(log.alias).filter(id__in=ids))  # first: one that has ended by then is settled
    total, pending, failed = Counter[str](), Counter[str](), Counter[str]()
    rows = BatchPart.objects.using(log.alias).filter(batch__in=[one.id for one in batches])
    for batch, members, outstanding, dead in rows.values_list("batch", "members", "outstanding", "dead"):
        total[batch] += members.bit_count()
        pending[batch] += outstanding.bit_count()
        failed[batch] += dead.bit_count()
    return {one.id: _status(one, total[one.id], pending[one.id], failed[one.id]) for one in batches}


def _status(batch: Batch, total: int, pending: int, failed: int) -> BatchStatus:
    return BatchStatus(
        batch.id,
        batch.name,
        total,
        total - pending - failed,
        failed,
        batch.created_at,
        batch.deadline_at,
        batch.sealed_at,
        batch.failed_at,
        batch.finished_at,
        batch.succeeded_at,
        batch.cancelled_at,
    )
