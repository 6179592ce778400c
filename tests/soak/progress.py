"""Whether everything moves on: no partition with messages to deliver stands still for longer than is stated here.

A message can be delivered from the moment at which its publisher was told of the commit, and all earlier messages of
its ordering queue are settled. It stands in a line: those before it in the partition come first. So until it begins,
no time longer than the bound may pass in which none of those begins, and nothing explains it. A failed message has to
begin again within the bound after its delay; one of a batch, after others of its partition, one by one, and before
any other of its partition begins. What was in flight when its process ended is in doubt, and the next process begins
such messages alone, one after another: those before it in its partition, and those of other partitions, may come first.

What explains a delay, and for how long:

the beginning             for UNSERVED + RECOVERY
a fault of everybody      while it lasts, and UNSERVED + RECOVERY after it: leases may have ended, and processes start
a fault of the owner      likewise; of a loop that hangs: HUNG_AFTER, and then the same
a publishing transaction  while it is open, if about WINDOW messages have been delivered beyond its beginning
what a key waits for      its own outcome: it is not the others' (they can be delivered, and have to be)
a later epoch             until the ends of those before are known, and the group has settled what they have of its keys
a database that is down      as a fault of its partitions' owners; of those that wait for it, too, and of what it relays

On a slow machine, or one with more to do than the run gives it, the bound and RECOVERY are as much longer
(Record.crowded).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sqlqueue.core.keys import partition_of
from tests.soak.epochs import Epochs
from tests.soak.explanations import ALIKE, Explanations
from tests.soak.places import database_at
from tests.soak.records import NEVER, Fault, Handling, Record, Transaction
from tests.soak.schedule import ALTERATIONS
from tests.soak.spans import longest_gap, pauses
from tests.soak.workload import (
    ALL_READERS,
    DEAD_LETTERS,
    HUNG_AFTER,
    TOO_LONG,
    UNSERVED,
    VISIBILITY_TIMEOUT,
    WAIT,
    WINDOW,
    Reader,
    partitions,
)

# A handler that takes its longest in each thread, and another behind it.
BOUND = 2 * TOO_LONG
RECOVERY = 6.0  # seconds: an interpreter starts, a server recovers, connections are made anew
MOST_DELAY = 1.0 + 2.0  # max_backoff, and a look at what is due
NEARLY = 0.8  # of a WINDOW, for what the position had still to pass when the transaction began
LONG = 1.0  # seconds: shorter transactions delay no handler
# These hold up no consumer. Who comes or leaves does, until the partitions are spread anew.
OF_PUBLISHERS = {
    *(kind.name for kind in ALTERATIONS),
    "kill-publisher",
    "stop-publisher",
    "shift-clock",
    "cut-publishers",
    "delay-publishers",
    "lose-replies-publishers",
    "silence-publishers",
}
GroupPartition = tuple[str, str, int]  # topic, group, partition
Span = tuple[float, float]
Waiting = tuple[GroupPartition, str, float, float, list[float]]
"""A message that could be delivered from one moment to another, and when those before it were begun, in order."""


@dataclass(frozen=True)
class Wait:
    """From one moment to another a message could be delivered, and neither it nor any before it was begun."""

    group_partition: GroupPartition
    id: str
    since: float
    until: float
    unexplained: float  # the longest part of it that nothing explains, in seconds


@dataclass
class Standstill:
    """Waits of one partition that overlap."""

    group_partition: GroupPartition
    since: float
    until: float
    longest: float
    messages: list[str]

    def __str__(self) -> str:
        topic, group, partition = self.group_partition
        some = ", ".join(self.messages[:3])
        return (
            f"{topic}[{partition}] for {group}: {self.longest:.1f} s without a reason, between {self.since:.1f} and"
            f" {self.until:.1f}; {len(self.messages)} messages, as {some}"
        )


class Progress:
    """Finds who waited, and what explains it."""

    def __init__(
        self,
        record: Record,
        explanations: Explanations,
        handled: Mapping[tuple[str, str, str], Sequence[Handling]],
        settled: Mapping[tuple[str, str, str], float],
    ) -> None:
        """handled: of each (topic, group, id); settled: when that was done for good, if it was."""
        self.record, self.explanations, self.handled, self.settled = record, explanations, handled, settled
        self.bound, self.recovery = BOUND * record.crowded, RECOVERY * record.crowded
        self._transactions: dict[tuple[str, str], tuple[Transaction, str]] = {
            (topic, id): (each, key) for each in record.transactions for topic, key, id in each.messages
        }
        self._epochs = Epochs(record, handled, settled)
        self._dead_letters = set(record.dead_letters)
        self._dead = {(each.topic, each.group, each.id) for each in record.dead}  # maybe without a handler: expired
        self._begins: dict[GroupPartition, list[float]] = defaultdict(list)
        self._all_begins: dict[GroupPartition, list[float]] = defaultdict(list)  # those of further attempts among them
        for (topic, group, _), handlings in handled.items():
            self._begins[topic, group, handlings[0].partition].append(handlings[0].began)
            self._all_begins[topic, group, handlings[0].partition] += [handling.began for handling in handlings]
        # What each process has begun that was in flight in another one, which had begun it or not.
        self._in_doubt: dict[int, list[Handling]] = defaultdict(list)
        for handlings in handled.values():
            if handlings[0].attempt > 1:
                self._in_doubt[handlings[0].process].append(handlings[0])
            for before, again in pairwise(handlings):
                if again.process != before.process:
                    self._in_doubt[again.process].append(again)
        for begins in (*self._begins.values(), *self._all_begins.values()):
            begins.sort()
        self._open = sorted(
            (each.began, each.ended)
            for each in record.transactions
            if each.ended is not None and each.ended - each.began > LONG
        )

    def standstills(self) -> list[Standstill]:
        """Return where a partition stood still for longer than the bound; nothing if it is not known how long the run
        was."""
        if not self.record.until:
            return []
        found: dict[GroupPartition, list[Standstill]] = defaultdict(list)
        for wait in sorted(self.waits(), key=lambda wait: wait.since):
            if wait.unexplained <= self.bound:
                continue
            of_partition = found[wait.group_partition]
            if of_partition and wait.since <= of_partition[-1].until:
                last = of_partition[-1]
                last.until = max(last.until, wait.until)
                last.longest = max(last.longest, wait.unexplained)
                last.messages.append(wait.id)
            else:
                of_partition.append(
                    Standstill(wait.group_partition, wait.since, wait.until, wait.unexplained, [wait.id])
                )
        return [standstill for of_partition in found.values() for standstill in of_partition]

    def waits(self) -> Iterable[Wait]:
        """Yield every time longer than the bound in which a message waited, and the line before it did not move."""
        for group_partition, id, since, until, line in (
            *self.of_first_ones(),
            *self._of_failed_ones(),
            *self._of_absent_ones(),
        ):
            for low, high in pauses(line, since, until, self.bound):
                unexplained = longest_gap(low, high, self.explained(group_partition, id, low, high))
                yield Wait(group_partition, id, low, high, unexplained)

    # -- who waited ---------------------------------------------------------------------------------------------------

    def of_first_ones(self) -> Iterable[Waiting]:
        """Yield how long each message waited before it was begun for the first time."""
        of_partition: dict[GroupPartition, list[tuple[int, Handling]]] = defaultdict(list)
        for (topic, group, _), handlings in self.handled.items():
            first = handlings[0]
            of_partition[topic, group, first.partition].append((first.offset, first))
        for group_partition, several in of_partition.items():
            free: dict[str | None, float] = defaultdict(float)  # when an ordering queue's earlier messages were settled
            begun: list[float] = []
            for _, first in sorted(several, key=lambda each: each[0]):
                transaction, key = self._transactions.get((first.topic, first.id), (None, ""))
                ordering_queue = self._ordering_queue(group_partition, key)
                if transaction is not None and transaction.told is not None:
                    since = max(transaction.told, free[ordering_queue] if ordering_queue else 0.0)
                    since = max(since, self._epochs.free(group_partition))
                    in_doubt = self._line_in_doubt(first, since) if first.attempt > 1 else []
                    yield group_partition, first.id, since, first.began, sorted(begun + in_doubt) if in_doubt else begun
                for handling in self._line_of(first):
                    insort(begun, handling.began)
                if ordering_queue:
                    done = self.settled.get((first.topic, first.group, first.id), NEVER)
                    free[ordering_queue] = max(free[ordering_queue], done)

    def _of_failed_ones(self) -> Iterable[Waiting]:
        """Yield how long what had failed waited, its delay over, before it was begun again. Messages of a batch that
        failed are tried again one by one, so they stand in a line."""
        for (topic, group, id), handlings in self.handled.items():
            group_partition = (topic, group, handlings[0].partition)
            nexts: list[tuple[float, Handling | None]] = [(each.began, each) for each in handlings[1:]]
            removed = topic == DEAD_LETTERS and (topic, id) not in self._dead_letters  # by a person
            if not removed and not self._done(topic, group, id):
                nexts.append((self.record.until, None))
            for handling, (again, by) in zip(handlings, nexts):
                if handling.succeeded:
                    continue
                ended = min(handling.until if handling.ended else NEVER, handling.began + VISIBILITY_TIMEOUT)
                delay = WAIT if (topic, handling.outcome) == ("waiting", "retry") else MOST_DELAY
                if ALIKE[topic, group].batch:
                    line = self._all_begins[group_partition]
                elif by is None or by.process == handling.process:
                    line = []
                else:
                    line = self._line_in_doubt(by, ended + delay)
                yield group_partition, id, ended + delay, again, line

    def _line_in_doubt(self, again: Handling, since: float) -> list[float]:
        """Return when what could come first was begun, if a message that was in doubt has waited for long."""
        if again.began - since <= self.bound:
            return []
        place = again.topic, again.group, again.partition
        return sorted(
            each.began
            for each in self._in_doubt[again.process]
            if (each.topic, each.group, each.partition) != place or each.offset < again.offset
        )

    def _of_absent_ones(self) -> Iterable[Waiting]:
        """Yield how long what was never begun has waited. It is not known what was before it: all of the partition."""
        free: dict[tuple[str, str, str], float] = defaultdict(float)
        absent: list[tuple[Reader, Transaction, str, str]] = []
        for reader in ALL_READERS:
            if reader.topic == DEAD_LETTERS:  # the consumer there does not say of which partition
                continue
            for (topic, id), (transaction, key) in self._transactions.items():
                if topic != reader.topic or transaction.told is None:
                    continue
                if (topic, reader.group, id) not in self.handled:
                    if (topic, reader.group, id) not in self._dead:
                        absent.append((reader, transaction, key, id))
                elif reader.ordering == "key":
                    done = self.settled.get((topic, reader.group, id), NEVER)
                    free[topic, reader.group, key] = max(free[topic, reader.group, key], done)
        for reader, transaction, key, id in absent:
            partition = self.record.placed.get((reader.topic, id), partition_of(key, partitions(reader.topic)))
            group_partition = (reader.topic, reader.group, partition)
            assert transaction.told is not None
            since = max(transaction.told, free[reader.topic, reader.group, key], self._epochs.free(group_partition))
            yield group_partition, id, since, self.record.until, self._begins.get(group_partition, [])

    def _line_of(self, first: Handling) -> Sequence[Handling]:
        """Return the handlings of a message that others of its partition wait for. What failed in a batch is tried
        again one by one before another batch is begun."""
        is_batch = ALIKE[first.topic, first.group].batch
        return self.handled[first.topic, first.group, first.id] if is_batch else [first]

    def _ordering_queue(self, group_partition: GroupPartition, key: str) -> str | None:
        ordering = ALIKE[group_partition[0], group_partition[1]].ordering
        return {"key": f"key {key}", "partition": "all of it", "none": None}[ordering]

    def _done(self, topic: str, group: str, id: str) -> bool:
        return self.settled.get((topic, group, id), NEVER) < NEVER

    # -- what explains it ---------------------------------------------------------------------------------------------

    def explained(self, group_partition: GroupPartition, id: str, since: float, until: float) -> list[Span]:
        """Return when there was something that explains that a message waited."""
        spans = [(self.record.since, self.record.since + UNSERVED + self.recovery)]
        spans += [span for fault in self.record.faults for span in self._span_of(fault, group_partition, id)]
        for began, ended in self._open:
            if (
                began < until
                and ended > since
                and self._begun_between(group_partition, began, until) >= WINDOW * NEARLY
            ):
                spans.append((began, ended))
        return spans

    def _span_of(self, fault: Fault, group_partition: GroupPartition, id: str) -> list[Span]:
        if fault.kind in OF_PUBLISHERS:
            return []
        if fault.database:
            if not self._needs(group_partition, id, fault):
                return []
        elif fault.victims is not None and not self._owners(group_partition, fault) & fault.victims:
            return []
        ended = fault.ended
        if fault.kind == "hang-consumer":
            ended = min(ended, fault.began + HUNG_AFTER)
        return [(fault.began, ended + UNSERVED + self.recovery)]

    def _needs(self, group_partition: GroupPartition, id: str, fault: Fault) -> bool:
        """Tell whether a message needs the database that a fault was done to."""
        if database_at(group_partition[2]) == fault.database:
            return True
        transaction, _ = self._transactions.get((group_partition[0], id), (None, ""))
        return transaction is not None and transaction.relayed_by == fault.database

    def _owners(self, group_partition: GroupPartition, fault: Fault) -> set[int]:
        """Return who may have owned a partition at the time of a fault, or what the group has to settle before it."""
        several = (group_partition, *self._epochs.feeders(group_partition))
        owners = self.explanations.owners_between
        return {process for each in several for process in owners(each, fault.began, fault.ended)}

    def _begun_between(self, group_partition: GroupPartition, low: float, high: float) -> int:
        begins = self._begins.get(group_partition, [])
        return bisect_right(begins, high) - bisect_left(begins, low)
