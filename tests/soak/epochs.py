"""What a change of a topic's partitions has to keep, and when a group could start the partitions of a later epoch."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby

from sqlqueue.core.keys import Epoch, database_of, feeders
from tests.soak.places import database_at
from tests.soak.records import NEVER, Change, Fault, Handling, Record
from tests.soak.schedule import OF_ONE_PROCESS
from tests.soak.spans import longest_gap

VIOLATIONS = {
    "epochs wrong": "in a partition or database that its key does not have, or that an earlier one of its key has left",
    "changes left": "a change of partitions that no process carried on within the bound, or not at all",
}
MOST = 12.0  # seconds that a change may take, beyond what holds it up
WAITS = 5  # so often it may wait for the longest transaction
AFTER = 6.0  # seconds for which a fault of everybody, or of a database, holds it up, after its end


class Epochs:
    """The epochs of the topics that were altered."""

    def __init__(
        self,
        record: Record,
        handled: Mapping[tuple[str, str, str], Sequence[Handling]],
        settled: Mapping[tuple[str, str, str], float],
    ) -> None:
        """handled: of each (topic, group, id); settled: when that was done for good, if it was."""
        self._of_topic = {topic: epochs for topic, epochs in record.epochs.items() if len(epochs) > 1}
        # Topic and first partition number: the former ends were known.
        self._opened: dict[tuple[str, int], float] = {}
        for change in record.changes:  # one that a failover has forgotten may have been made again
            self._opened[change.topic, change.base] = change.ended or NEVER
        self._done: dict[tuple[str, str, int], float] = defaultdict(float)
        self._free: dict[tuple[str, str, int], float] = {}
        for (topic, group, id), handlings in handled.items():
            if topic in self._of_topic:
                each = topic, group, handlings[0].partition
                # One that was in doubt is settled once it has been handled again.
                last = max(handling.until for handling in handlings)
                self._done[each] = max(self._done[each], last, settled.get((topic, group, id), NEVER))

    def feeders(self, group_partition: tuple[str, str, int]) -> list[tuple[str, str, int]]:
        """Return what a group has to settle before it starts a partition: those of earlier epochs that can have keys of
        it."""
        topic, group, partition = group_partition
        epochs = self._of_topic.get(topic, ())
        mine = next((epoch for epoch in epochs if partition in epoch.numbers), None)
        found = () if mine is None else (p for epoch in epochs for p in _feeding(partition, mine, epoch))
        return [(topic, group, p) for p in found]

    def free(self, group_partition: tuple[str, str, int]) -> float:
        """Return from when on a group could start a partition: the ends of the earlier epochs were known, and it had
        settled all that these have of its keys. 0 for those of the first."""
        if group_partition[0] not in self._of_topic:
            return 0.0
        if group_partition not in self._free:
            self._free[group_partition] = self._free_since(group_partition)
        return self._free[group_partition]

    def _free_since(self, group_partition: tuple[str, str, int]) -> float:
        topic, _, partition = group_partition
        opened = [self._opened.get((topic, step), NEVER) for step in self._steps(topic, partition)]
        return max([0.0, *opened, *(self._done[each] for each in self.feeders(group_partition))])

    def _steps(self, topic: str, partition: int) -> Sequence[int]:
        """Return the changes that led to the epoch of a partition."""
        epochs = self._of_topic[topic]
        here = [epoch.base for epoch in epochs if epoch.number and database_at(epoch.base) == database_at(partition)]
        return [base for base in here if base <= partition]


def _feeding(partition: int, mine: Epoch, other: Epoch) -> Sequence[int]:
    """Return the partitions of another epoch of a topic that can have earlier messages of the keys of a partition."""
    if database_at(mine.base) != database_at(other.base) or other.number >= mine.number:
        return ()
    return feeders(partition, mine, other)


def wrong_epochs(record: Record) -> Iterator[str]:
    """Yield which messages are not where their keys belong, and those that a key has gone back with: published into an
    earlier epoch once a later one had been told of, or all keys had gone over."""
    found: dict[tuple[str, str], Handling] = {(each.topic, each.id): each for each in record.handlings}
    of_key: dict[tuple[str, str], list[tuple[float, float, int, str]]] = defaultdict(list)
    for transaction in record.transactions:
        for topic, key, id in transaction.messages:
            handling, epochs = found.get((topic, id)), record.epochs.get(topic, ())
            if handling is None or not epochs:
                continue
            databases = record.databases.get(topic, ())
            epoch = next((each for each in epochs if _is_in(key, handling.partition, each, databases)), None)
            if epoch is None:
                yield f"{id} of {topic}, of the key {key}, in partition {handling.partition}, with {list(epochs)}"
                continue
            over = _complete(record, topic, transaction.began)
            if over > epoch.number:
                yield f"{id} of {topic}, of the key {key}, in epoch {epoch}, although all keys had gone over to {over}"
            if len(epochs) > 1:
                told = NEVER if transaction.told is None else transaction.told
                of_key[topic, key].append((transaction.began, told, epoch.number, id))
    for (topic, key), several in of_key.items():
        yield from _gone_back(topic, key, several)


def _is_in(key: str, partition: int, epoch: Epoch, databases: Sequence[str]) -> bool:
    if epoch.partition_of(key) != partition:
        return False
    return not databases or database_of(key, databases) == database_at(partition)


def _complete(record: Record, topic: str, moment: float) -> int:
    """Return the epoch to which all keys had gone over at a moment. A failover may have undone that."""
    over = (each.epoch for each in record.changes if each.topic == topic and (each.ended or NEVER) < moment)
    return 0 if record.failovers else max(over, default=0)


def _gone_back(topic: str, key: str, several: list[tuple[float, float, int, str]]) -> Iterator[str]:
    told = sorted((told, rank) for _, told, rank, _ in several)
    moments, latest = [at for at, _ in told], list(accumulate((rank for _, rank in told), max))
    for began, _, rank, id in several:
        before = bisect_left(moments, began)
        if before and latest[before - 1] > rank:
            yield f"{id} of {topic}, of the key {key}, in epoch {rank} after {latest[before - 1]}"


def left_changes(record: Record) -> Iterator[str]:
    """Yield the changes that took longer than they may."""
    if record.unfinished:
        yield f"{record.unfinished} at the end of the run"
    for change in record.changes:
        seconds = unexplained(record, change)
        if seconds > MOST * record.crowded + WAITS * longest_transaction(record, change):
            yield f"{change}: {seconds:.1f} s without a reason"


def unexplained(record: Record, change: Change) -> float:
    """Return the longest part of a change that no fault explains, in seconds."""
    spans = [span for fault in record.faults for span in _span_of(fault, record.crowded)]
    until = record.until or change.began
    return longest_gap(change.began, change.ended if change.ended is not None else until, spans)


def longest_transaction(record: Record, change: Change) -> float:
    """Return how long the longest transaction of a publisher took that was open at the time of a change."""
    until = change.ended or NEVER
    spans = [(each.began, each.ended) for each in record.transactions if each.ended is not None]
    return max((end - began for began, end in spans if began < until and end > change.began), default=0.0)


def _span_of(fault: Fault, crowded: float) -> list[tuple[float, float]]:
    if fault.kind in OF_ONE_PROCESS:
        return []
    of_many = fault.victims is None or fault.database
    return [(fault.began, fault.ended + (AFTER * crowded if of_many else 0.0))]


def figures(record: Record) -> dict[str, object]:
    """Return how much was changed."""
    changes = [change for change in record.changes if change.ended is not None]
    longest = round(max((c.ended - c.began for c in changes if c.ended), default=0.0), 1)
    made = {topic: ways(str(each.partitions) for each in epochs) for topic, epochs in record.epochs.items()}
    return {
        "changes of partitions": made,
        "longest change of partitions (s)": longest,
        "ids published again during a change": published_again(record),
    }


def ways(stages: Iterable[str]) -> str:
    """Return what a topic had one after another."""
    return " → ".join(stage for stage, _ in groupby(stages))


def published_again(record: Record) -> int:
    """Return how many messages were published again, for want of an answer, while their topic was changed."""
    again = [each for each in record.transactions if each.doubted and each.told is not None]
    return sum(
        topic == change.topic and each.began < (change.ended or NEVER) and change.began < (each.told or 0.0)
        for change in record.changes
        for each in again
        for topic, _, _ in each.messages
    )
