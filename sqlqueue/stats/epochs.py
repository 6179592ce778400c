"""In which epoch of its topic a group is, and what waits for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlqueue.core.epochs import Epoch
from sqlqueue.stats.positions import StoredPartition


@dataclass(frozen=True, slots=True)
class GroupEpochs:
    """A group among the epochs of its topic. present: the oldest one in which it has something to settle, or the
    newest; unsettled: the partitions of the present one in which it has; waiting: those of later ones that wait for
    them."""

    present: int
    newest: int
    unsettled: int
    waiting: int

    @property
    def held(self) -> bool:
        """Whether it has something to settle in an epoch that is closed, or being closed."""
        return self.present < self.newest


def group_epochs(
    epochs: Sequence[Epoch], partitions: Iterable[StoredPartition], behind: Iterable[StoredPartition]
) -> GroupEpochs:
    """Return where a group is; behind: its partitions in which it has something to settle."""
    unread = {stored.partition for stored in behind}
    # An epoch may have been retired since these were read.
    numbers = [epoch for epoch in epochs for number in epoch.numbers if number in unread]
    newest = epochs[-1].number
    present = min((epoch.number for epoch in numbers), default=newest)
    unsettled = sum(epoch.number == present for epoch in numbers)
    return GroupEpochs(present, newest, unsettled, len({stored.partition for stored in partitions if stored.waits}))
