"""What a change of a topic's partitions has to keep, and when a group could start the partitions of a later epoch."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, groupby

from sqlqueue.core.epochs import feeders
from tests.soak.records import NEVER, Change, Fault, Handling, Record
from tests.soak.schedule import OF_ONE_PROCESS
from tests.soak.spans import longest_gap

VIOLATIONS = {
    "epochs wrong": "in a partition that its key does not have, or in an epoch that an earlier one of its key has left",
    "changes left": "a change of partitions that no process carried on within the bound, or not at all",
}
MOST = 12.0  # seconds that a change may take, beyond what holds it up
WAITS = 5  # so often it may wait for the longest transaction
AFTER = 6.0  # seconds for which a fault of everybody holds it up, after its end


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
        self._opened: dict[tuple[str, int], float] = {}  # topic and first partition number: the former end was known
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
        index = next((index for index, epoch in enumerate(epochs) if partition in epoch.numbers), 0)
        return [(topic, group, p) for epoch in epochs[:index] for p in feeders(partition, epochs[index], epoch)]

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
        until = [epoch for epoch in self._of_topic[topic] if epoch.base <= partition]
        opened = [self._opened.get((topic, epoch.base), NEVER) for epoch in until[1:]]
        return max([0.0, *opened, *(self._done[each] for each in self.feeders(group_partition))])


def wrong_epochs(record: Record) -> Iterator[str]:
    """Yield which messages are not where their keys belong, and those that a key has gone back with: published into an
    earlier epoch once a later one had been told of."""
    found: dict[tuple[str, str], Handling] = {(each.topic, each.id): each for each in record.handlings}
    of_key: dict[tuple[str, str], list[tuple[float, float, int, str]]] = defaultdict(list)
    for transaction in record.transactions:
        for topic, key, id in transaction.messages:
            handling, epochs = found.get((topic, id)), record.epochs.get(topic, ())
            if handling is None or not epochs:
                continue
            epoch = next((each for each in epochs if each.partition_of(key) == handling.partition), None)
            if epoch is None:
                yield f"{id} of {topic}, of the key {key}, in partition {handling.partition}, with {list(epochs)}"
            elif len(epochs) > 1:
                told = NEVER if transaction.told is None else transaction.told
                of_key[topic, key].append((transaction.began, told, epoch.number, id))
    for (topic, key), several in of_key.items():
        yield from _gone_back(topic, key, several)


def _gone_back(topic: str, key: str, several: list[tuple[float, float, int, str]]) -> Iterator[str]:
    told = sorted((told, number) for _, told, number, _ in several)
    latest = list(accumulate((number for _, number in told), max))
    for began, _, number, id in several:
        before = bisect_left(told, (began, -1))
        if before and latest[before - 1] > number:
            yield f"{id} of {topic}, of the key {key}, in epoch {number} after {latest[before - 1]}"


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
    return [(fault.began, fault.ended + (AFTER * crowded if fault.victims is None else 0.0))]


def figures(record: Record) -> dict[str, object]:
    """Return how much was changed."""
    of_topic = {topic: [epoch.partitions for epoch in epochs] for topic, epochs in record.epochs.items()}
    changes = [change for change in record.changes if change.ended is not None]
    return {
        "changes of partitions": {
            topic: " → ".join(map(str, [count for count, _ in groupby(counts)])) for topic, counts in of_topic.items()
        },
        "longest change of partitions (s)": round(max((c.ended - c.began for c in changes if c.ended), default=0.0), 1),
        "ids published again during a change": published_again(record),
    }


def published_again(record: Record) -> int:
    """Return how many messages were published again, for want of an answer, while their topic was changed."""
    again = [each for each in record.transactions if each.doubted and each.told is not None]
    return sum(
        topic == change.topic and each.began < (change.ended or NEVER) and change.began < (each.told or 0.0)
        for change in record.changes
        for each in again
        for topic, _, _ in each.messages
    )
