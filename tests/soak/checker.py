"""Finds what went wrong in a run, from what outsiders can see: what publishers were told, what handlers wrote down,
what consumers announced, what was done to whom, and the tables at the end.

Every figure is a count; those of VIOLATIONS must be 0.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import accumulate
from typing import TypeAlias

from tests.soak import epochs, job_checks, starving
from tests.soak.explanations import ALIKE, LATE, Explanations, overran, rerun
from tests.soak.progress import Progress
from tests.soak.records import NEVER, Handling, Record, Settle, Transaction, by_message, settles
from tests.soak.starving import Starving
from tests.soak.workload import (
    ADDED,
    ALL_READERS,
    CALLED,
    DEAD_LETTERS,
    DEAD_LETTERS_OF,
    LEASE_DURATION,
    MAX_ATTEMPTS,
    MEMBERS,
    NAMED,
    REQUESTS,
    THREADS,
    TICKS,
)

VIOLATIONS = {
    "lost": "committed, as the publisher was told or as others saw, and neither handled nor a dead letter",
    "never published": "handled, and taken back or never published",
    "published twice": "one id at two offsets of the log, within the time for which the first was kept",
    "torn": "a transaction in doubt of which some messages are there, and others are not",
    "delivered after the ack": "handled again after the ack, or the dead letter, had been confirmed",
    "out of order": "begun while an earlier message of its ordering queue was unsettled",
    "two at once": "two messages of one ordering queue side by side in one process",
    "unexplained duplicates": "handled again, and no fault within the time, or no takeover, tells why",
    "effects twice": "an atomic handler's writes committed more than once",
    "effects lost": "acked by an atomic handler whose writes are not there",
    "attempts wrong": "an attempt's number twice, fallen, too high, or raised with neither a handling nor a fault",
    "dead-lettered without reason": "a dead letter not rejected and not out of attempts, or acked, or there twice",
    "two owners": "begun by a process whose partition another one owned, or not ended when that one took it",
    "left behind": "rows that no group needs any more",
    "stood still": "a partition with messages to deliver in which none began within the bound, and nothing tells why",
    "failed without reason": "a handler's own query failed again and again, and no fault tells why",
    "tasks failing": "a background task of a process failed again and again, and no fault tells why",
    "wrong answers": "a publisher was refused, or told what is not so, and no fault tells why",
    **starving.VIOLATIONS,
    **epochs.VIOLATIONS,
    **job_checks.VIOLATIONS,
}
ORDERINGS = ("key", "partition")  # those that promise something
KEPT = 15.0  # seconds for which every run keeps messages at least
# So often within so many seconds, and outside of what a fault explains (which it does for so long after its end).
AGAIN_AND_AGAIN, WITHIN, AFTERMATH = 3, 30.0, 5.0
LATE_BEGINS = THREADS + 1  # what a stopped process may begin late: one in each thread, and one on its event loop


Call: TypeAlias = tuple[int, str, str, float]


def call_of(handling: Handling) -> Call:
    """Return what tells the call of a handler from others: a batch has one moment."""
    return handling.process, handling.topic, handling.group, handling.began


class Checker:
    """The findings of one run. `problems` has a line for each of the first violations of a kind."""

    def __init__(self, record: Record, one_writer: bool = False) -> None:
        self.record = record
        self.figures: Counter[str] = Counter()
        self.disorder = dict.fromkeys(ORDERINGS, 0)  # how many were out of order, by ordering
        self.deliveries: Counter[str] = Counter()  # by ordering
        self.problems: list[str] = []
        self.duplicates: Counter[str] = Counter()  # by what explains them
        self._handled = by_message(record.handlings)
        # Those of a batch begin together, in the order of the list.
        self._indexes = {
            (h.process, h.began, h.topic, h.group, h.id): index for index, h in enumerate(record.handlings)
        }
        self._published: dict[tuple[str, str], Transaction] = {
            (topic, id): transaction for transaction in record.transactions for topic, _, id in transaction.messages
        }
        self._keys = {(topic, id): key for each in record.transactions for topic, key, id in each.messages}
        self._dead = {
            (dead_letter.topic, dead_letter.group, dead_letter.id) for dead_letter in record.dead
        } | record.removed
        self._log = {(entry.topic, entry.id): entry for entry in record.jobs.log}
        self._seen = {(topic, id) for topic, _, id in [*self._handled, *self._dead]}
        self._acked: dict[tuple[str, str, str], float] = {}
        self._explanations = Explanations(record, one_writer)
        self._calls: dict[Call, set[int]] = defaultdict(set)  # the offsets that each call of a handler had
        for handling in record.handlings:
            self._calls[call_of(handling)].add(handling.offset)
        # What a process has stored of messages that wait: with that, those behind them of their key do.
        self._stored_waits: dict[tuple[int, str, str, str], list[Settle]] = defaultdict(list)
        for handling, settle in settles(record):
            if settle.outcome in ("retried", "postponed"):
                self._stored_waits[self._line_of(handling)].append(settle)
        self._own_queues: dict[tuple[int, str, str, str], OwnOrderingQueue] = {}
        self._late: set[int] = set()  # id() of handlings that a process began right after it had been stopped

    def check(self) -> Checker:
        """Look for everything; return itself."""
        self._look_at_owners()  # finds the late ones, which the others ask for
        self._look_for_lost_ones()
        self._look_for_lost_dead_letters()
        self._look_for_lost_entries()
        if self.record.drained:
            self._look_for_lost_effects()
        self._look_for_unpublished_ones()
        self._look_for_double_ones()
        self._look_at_doubtful_transactions()
        self._look_behind_acks()
        self._look_at_order()
        self._look_at_company()
        self._look_at_duplicates()
        self._look_at_effects()
        self._look_at_attempts()
        self._look_at_dead_letters()
        self._look_at_progress()
        self._look_at_what_keeps_failing()
        self._look_at_epochs()
        job_checks.JobChecks(self.record, self._explanations, self._found).look()
        for table, count in self.record.leftovers.items():
            if count:
                self._found("left behind", f"{count} rows in {table}", count)
        return self

    @property
    def violations(self) -> dict[str, int]:
        """How many of each kind of violation, 0 for none."""
        return {name: self.figures[name] for name in VIOLATIONS}

    def _found(self, kind: str, what: str, count: int = 1) -> None:
        self.figures[kind] += count
        if sum(problem.startswith(kind) for problem in self.problems) < 10:
            self.problems.append(f"{kind}: {what}")

    # -- what must have come, and what must not -----------------------------------------------------------------------

    def _is_lost(self, topic: str, group: str, id: str) -> bool:
        key = (topic, group, id)
        done = key in self._dead or any(handling.succeeded for handling in self._handled.get(key, ()))
        return not done and key not in self.record.pending

    def _look_for_lost_ones(self) -> None:
        """What one group has seen was committed, whatever the publisher was told; so all must have had it."""
        for transaction in self.record.transactions:
            for topic, key, id in transaction.messages:
                if transaction.told is None and (transaction.back or (topic, id) not in self._seen):
                    continue
                for reader in ALL_READERS:
                    if reader.topic == topic and self._is_lost(topic, reader.group, id):
                        self._found("lost", f"{id} (key {key}) of {topic} for {reader.group}")

    def _look_for_lost_dead_letters(self) -> None:
        """A dead letter that is there at the end is a message of its topic like any other."""
        for topic, id in self.record.dead_letters:
            for reader in ALL_READERS:
                if reader.topic == topic and self._is_lost(topic, reader.group, id):
                    self._found("lost", f"{id} of {topic} for {reader.group}")

    def _look_for_lost_entries(self) -> None:
        """Of a log that is kept, each message was for its groups."""
        for entry in self.record.jobs.log:
            for reader in ALL_READERS:
                wanted = reader.topic == entry.topic and entry.group in ("", reader.group)
                if wanted and reader.wants(entry.payload) and self._is_lost(entry.topic, reader.group, entry.id):
                    self._found("lost", f"{entry.id} of {entry.topic} for {reader.group}")

    def _look_for_unpublished_ones(self) -> None:
        for topic, id in self._seen:
            if topic == DEAD_LETTERS:  # consumers publish there
                continue
            own = topic in (TICKS, NAMED, CALLED, REQUESTS) or (topic == MEMBERS and id.endswith(ADDED))
            if own and (topic, id) in self._log:
                continue  # its own checks look at what is in the log
            transaction = self._published.get((topic, id))
            if transaction is None or transaction.back:
                self._found("never published", f"{id} of {topic}")

    def _look_for_double_ones(self) -> None:
        offsets: dict[tuple[str, str], set[int]] = defaultdict(set)
        for handling in self.record.handlings:
            offsets[handling.topic, handling.id].add(handling.offset)
        for (topic, id), found in offsets.items():
            transaction = self._published.get((topic, id))
            if len(found) > 1 and transaction and transaction.told and transaction.told - transaction.began < KEPT:
                self._found("published twice", f"{id} of {topic} at {sorted(found)}")

    def _look_at_doubtful_transactions(self) -> None:
        for transaction in self.record.transactions:
            if transaction.told is not None or transaction.back:
                continue
            absent = [id for topic, _, id in transaction.messages if (topic, id) not in self._seen]
            if absent and len(absent) < len(transaction.messages):
                self._found("torn", f"{absent} are not there, of {transaction.messages}")

    def _look_behind_acks(self) -> None:
        """An offset alone says little: a server that crashed may have given it to another message."""
        confirmed: dict[tuple[str, str, str], float] = {}
        for handling, settle in settles(self.record):
            if settle.outcome in ("acked", "dead"):
                confirmed.setdefault((handling.topic, handling.group, handling.id), settle.at)
                if settle.outcome == "acked":
                    self._acked.setdefault((handling.topic, handling.group, handling.id), settle.at)
        for key, at in confirmed.items():
            for handling in self._handled[key]:
                if handling.began > at and not self._began_late(handling):
                    late = handling.began - at
                    self._found("delivered after the ack", f"{handling}, {late:.3f} s after it was confirmed")
        self.figures["acks confirmed"] = len(self._acked)

    # -- order --------------------------------------------------------------------------------------------------------

    def _ordering_queue(self, handling: Handling, key: str) -> str | None:
        ordering = ALIKE[handling.topic, handling.group].ordering
        return {"key": key, "partition": f"partition {handling.partition}", "none": None}[ordering]

    def _ordering_queues(self, handling: Handling, key: str) -> set[str]:
        """Where a partition is in order, so is a key, over all of the partitions that it has had."""
        queue = self._ordering_queue(handling, key)
        several = len(self.record.epochs.get(handling.topic, ())) > 1
        return set() if queue is None else {queue, key} if several else {queue}

    def _look_at_order(self) -> None:
        """Before a handler begins, each message of its ordering queue is settled whose publisher was told of the commit
        before this one's publisher began; and of its own transaction those that were published before it."""
        ordering_queues: dict[tuple[str, str, str], list[tuple[float, float, str]]] = defaultdict(list)
        begins: dict[tuple[str, str, str], list[Handling]] = defaultdict(list)
        done: dict[tuple[str, str, str], tuple[str, float]] = {}  # ordering queue, and when
        for (topic, group, id), handlings in self._handled.items():
            self.deliveries[ALIKE[topic, group].ordering] += len(handlings)
            transaction = self._published.get((topic, id))
            own = self._ordering_queue(handlings[0], self._keys[topic, id]) if transaction else None
            if transaction is None or own is None:
                continue
            ended = self._settled_at(handlings, (topic, group, id) in self._dead)
            done[topic, group, id] = own, ended
            for ordering_queue in self._ordering_queues(handlings[0], self._keys[topic, id]):
                begins[topic, group, ordering_queue] += handlings
                if transaction.told is not None and ended < NEVER:
                    ordering_queues[topic, group, ordering_queue].append((transaction.told, ended, id))
        for queue, handlings in begins.items():
            ordered = sorted(ordering_queues[queue])
            told = [at for at, _, _ in ordered]
            latest = list(accumulate((ended for _, ended, _ in ordered), max))
            for handling in handlings:
                if self._is_forgotten(handling):
                    continue  # what came before it may have been done once more
                transaction = self._published[handling.topic, handling.id]
                earlier = bisect_left(told, transaction.began)
                if earlier and latest[earlier - 1] > handling.began:
                    unsettled = (id for _, ended, id in ordered[:earlier] if ended > handling.began)
                    before = next((id for id in unsettled if not self._behind_in_batch(handling, id)), None)
                    if before is not None:
                        self._found_disorder(handling, before)
                self._look_at_own_transaction(handling, transaction, done)

    def _found_disorder(self, handling: Handling, before: str) -> None:
        self.disorder[ALIKE[handling.topic, handling.group].ordering] += 1
        self._found("out of order", f"{handling} before {before}")

    def _settled_at(self, handlings: Sequence[Handling], dead: bool) -> float:
        """Return when a message was done for its group: at its first success's end, or, dead, at its last end, or when
        it was dead-lettered, if a handler went on longer than that."""
        successes = [handling.until for handling in handlings if handling.succeeded]
        if successes:
            return min(successes)
        last = handlings[-1]
        dead_lettered = self.record.dead_lettered.get((last.topic, last.group, last.offset), NEVER)
        return min(max(handling.until for handling in handlings), dead_lettered) if dead else NEVER

    def _behind_in_batch(self, handling: Handling, id: str) -> bool:
        """Tell whether a message stands behind another in one batch: those begin together, in their order."""
        batch = (handling.process, handling.began, handling.topic, handling.group)
        index = self._indexes.get((*batch, id))
        return index is not None and index < self._indexes[(*batch, handling.id)]

    def _look_at_own_transaction(
        self, handling: Handling, transaction: Transaction, done: dict[tuple[str, str, str], tuple[str, float]]
    ) -> None:
        own, _ = done[handling.topic, handling.group, handling.id]
        ordering_queue = (id(transaction), handling.topic, handling.group, own)
        if ordering_queue not in self._own_queues:
            of_group = ((id, done.get((topic, handling.group, id))) for topic, _, id in transaction.messages)
            self._own_queues[ordering_queue] = OwnOrderingQueue(
                [(id, known[1]) for id, known in of_group if known and known[0] == own]
            )
        for earlier in self._own_queues[ordering_queue].unsettled_before(handling):
            if not self._behind_in_batch(handling, earlier):
                self._found_disorder(handling, f"{earlier} of its own transaction")

    def _look_at_company(self) -> None:
        """Messages of an ordering queue run one after another in a process, but for one that is over its time."""
        last: dict[tuple[int, str, str, str], Handling] = {}
        for handling in self.record.handlings:
            key = self._keys.get((handling.topic, handling.id))
            ordering_queue = self._ordering_queue(handling, key) if key is not None else None
            if ordering_queue is None:
                continue
            queue = (handling.process, handling.topic, handling.group, ordering_queue)
            before = last.get(queue)
            last[queue] = handling
            if before is None or before.began == handling.began:  # of one batch
                continue
            overlap = before.ended is not None and before.ended > handling.began
            if overlap and not self._explanations.loss(before, handling):
                self._found("two at once", f"{before} and {handling}")

    # -- duplicates, effects, attempts --------------------------------------------------------------------------------

    def _look_at_duplicates(self) -> None:
        for handlings in self._handled.values():
            for first, again in pairs_after_success(handlings):
                why = self._explained(first, again)
                self.duplicates[why or "nothing"] += 1
                self.figures["duplicates"] += 1
                if not why:
                    self._found("unexplained duplicates", f"{again} after {first}")

    def _explained(self, first: Handling, again: Handling) -> str:
        if self._began_late(first) or self._began_late(again):
            return LATE
        return self._explanations.loss(first, again) or ("a deadlock's rerun" if rerun(first, again) else "")

    def _is_forgotten(self, handling: Handling) -> bool:
        """Tell whether the server that took another one's place after a handling does not know of it."""
        message = (handling.topic, handling.group, handling.id)
        return any(handling.began < each.died and message in each.pending for each in self.record.failovers)

    def _look_at_effects(self) -> None:
        for (group, id), count in self.record.entries.items():
            if count > 1:
                self._found("effects twice", f"{id} for {group}: {count} times", count - 1)

    def _look_for_lost_effects(self) -> None:
        for topic, group, id in self._handled:
            if not ALIKE[topic, group].atomic or (topic, group, id) in self._dead:
                continue
            transaction = self._published.get((topic, id))
            if transaction and not transaction.back and not self.record.entries.get((group, id)):
                self._found("effects lost", f"{id} for {group}")

    def _look_at_attempts(self) -> None:
        for (topic, group, id), handlings in self._handled.items():
            if any((topic, group, id) in failover.pending for failover in self.record.failovers):
                continue  # how many attempts its tables remember is not known
            by_offset: dict[int, list[Handling]] = defaultdict(list)
            for handling in handlings:
                by_offset[handling.offset].append(handling)
            for one in by_offset.values():
                self._look_at_attempts_of(topic, id, one)

    def _look_at_attempts_of(self, topic: str, id: str, handlings: list[Handling]) -> None:
        since = self._since(topic, id, handlings[0].began)
        charged: dict[int, Handling] = {}
        for handling in handlings:
            number = handling.attempt
            same = charged.get(number)
            if same and not self._uncharged(same, handling):
                self._found("attempts wrong", f"{handling} has the same attempt as {same}")
            if number < max(charged, default=0) and not self._began_late(handling):
                self._found("attempts wrong", f"{handling} after {sorted(charged)}")
            if number > MAX_ATTEMPTS + 1:  # one more for those that were in company
                self._found("attempts wrong", f"{handling} of at most {MAX_ATTEMPTS} attempts and one more")
            extra = number - 1 - sum(attempt < number for attempt in charged)
            if extra > 0 and extra > (most := self._unseen(handling, since, handling.began)):
                self._found("attempts wrong", f"{handling} after {sorted(charged)}, and at most {most} unseen ones")
            if handling.outcome != "postpone":
                charged[number] = handling

    def _since(self, topic: str, id: str, began: float) -> float:
        """Return from when on a message may have been in the log; a dead letter: from when it was dead-lettered."""
        published = self._published.get((topic, id))
        if published is None and topic == DEAD_LETTERS and ":" in id:
            group, _, offset = id.partition(":")
            return self.record.dead_lettered.get((DEAD_LETTERS_OF, group, int(offset)), self.record.since)
        if published is None and (topic, id) in self._log:
            return self._log[topic, id].entered - self.record.jobs.clock
        return published.began if published else began

    def _uncharged(self, first: Handling, again: Handling) -> bool:
        """Tell whether a message may have been handled again without a charge for its first handling."""
        explained = self._explanations
        return (
            rerun(first, again)
            or self._divided(first, again)
            or explained.released(first, again.began)
            or explained.rolled_back(first, again.began)
            or explained.held_up(first, again.began)
        )

    def _divided(self, first: Handling, again: Handling) -> bool:
        """Tell whether a batch that failed was handled again in parts, until the one that fails has failed alone;
        then the others, with what came after them: there or, if their key waits for that one, in a later batch, which
        may be another process's once this one has released the partition, or has stored that they wait. The size of
        that batch says nothing; what failed as a whole is never handled again as a whole."""
        before, after = self._calls[call_of(first)], self._calls[call_of(again)]
        if not ALIKE[first.topic, first.group].batch or first.outcome != "fail" or first.until > again.began:
            return False
        moved = first.process != again.process
        given_up = self._explanations.given_up(first, first.until, again.began)
        if moved and not (given_up or self._waited(first, again.began)):
            return False
        return not before <= after

    def _waited(self, handling: Handling, high: float) -> bool:
        """Tell whether the process of a handling stored afterwards that the message is postponed, or waits behind one
        of its key; and not that it has failed itself."""
        stored = self._stored_waits.get(self._line_of(handling), ())
        found = [one for one in stored if handling.until <= one.at <= high and one.offset <= handling.offset]
        return bool(found) and not any(one.offset == handling.offset and one.outcome == "retried" for one in found)

    def _line_of(self, handling: Handling) -> tuple[int, str, str, str]:
        """Return what messages share that wait for one another in a process: their key, if they have one."""
        key = self._keys.get((handling.topic, handling.id))
        return handling.process, handling.topic, handling.group, key or handling.id

    def _unseen(self, handling: Handling, low: float, high: float) -> int:
        """Return how many attempts may have been charged in a span of time although no handler began: one with each
        takeover, if there was a fault."""
        harmed = self._explanations.harmful(low - LEASE_DURATION, high)
        return self._explanations.takeovers(handling, low, high) if harmed else 0

    def _look_at_dead_letters(self) -> None:
        for dead_letter, count in Counter(self.record.dead).items():
            key = (dead_letter.topic, dead_letter.group, dead_letter.id)
            handlings = self._handled.get(key, [])
            if dead_letter.error == job_checks.EXPIRED:
                if job_checks.expired_early(self._log.get((dead_letter.topic, dead_letter.id)), dead_letter.at):
                    self._found("dead-lettered without reason", f"{dead_letter}, before it had expired")
            elif not self._ran_out(handlings) and not any(handling.outcome == "reject" for handling in handlings):
                self._found("dead-lettered without reason", f"{dead_letter} after {handlings}")
            if key in self._acked or self.record.entries.get((dead_letter.group, dead_letter.id)):
                self._found("dead-lettered without reason", f"{dead_letter}, although it was acked")
            if count > 1:
                self._found("dead-lettered without reason", f"{dead_letter}, {count} times", count - 1)
        self.figures["dead letters"] = len(self.record.dead)

    def _ran_out(self, handlings: list[Handling]) -> bool:
        """Tell whether a message may have been out of attempts. The last may have ended before its handler began."""
        tries = [
            handling
            for handling in handlings
            if not handling.succeeded or overran(handling, NEVER) or self._explanations.fault_upon(handling, NEVER)
        ]
        last = max(tries, key=lambda handling: handling.attempt, default=None)
        if last is None or last.attempt >= MAX_ATTEMPTS:
            return last is not None
        return last.attempt == MAX_ATTEMPTS - 1 and self._unseen(last, last.began, NEVER) > 1

    # -- progress -----------------------------------------------------------------------------------------------------

    def _look_at_progress(self) -> None:
        settled = {key: self._settled_at(handlings, key in self._dead) for key, handlings in self._handled.items()}
        self.progress = Progress(self.record, self._explanations, self._handled, settled)
        for standstill in self.progress.standstills():
            self._found("stood still", str(standstill))
        self.starving = Starving(self.progress)
        for what in self.starving.found():
            self._found("starved", what)

    def _look_at_what_keeps_failing(self) -> None:
        failed: dict[tuple[str, int, str], list[float]] = defaultdict(list)
        for at, process, task, fault in self.record.complaints:
            if fault != "CONTENTION":
                failed["tasks failing", process, task].append(at)
        for handling in self.record.handlings:
            if handling.outcome.startswith("error"):
                failed["failed without reason", handling.process, handling.group].append(handling.until)
        for (kind, process, what), moments in failed.items():
            unexplained = [at for at in moments if not self._harmed(process, at)]
            for first, last in zip(unexplained, unexplained[AGAIN_AND_AGAIN - 1 :]):
                if last - first <= WITHIN:
                    self._found(kind, f"{what} in process {process}, {len(unexplained)} times since {first:.1f}")
                    break
        for at, what in self.record.wrong:
            if all(fault.victims is not None for fault in self._explanations.between(at - AFTERMATH, at)):
                self._found("wrong answers", what)

    def _harmed(self, process: int, at: float) -> bool:
        faults = self._explanations.harmful(at - AFTERMATH, at)
        return any(fault.touches(process) for fault in faults)

    def _look_at_epochs(self) -> None:
        for what in epochs.wrong_epochs(self.record):
            self._found("epochs wrong", what)
        for what in epochs.left_changes(self.record):
            self._found("changes left", what)

    # -- owners -------------------------------------------------------------------------------------------------------

    def _began_late(self, handling: Handling) -> bool:
        return id(handling) in self._late

    def _look_at_owners(self) -> None:
        """Look for handlers that a process begins or goes on with although another one has acquired the partition.

        Each thread of a process that was stopped between its last look at the lease and the beginning may begin one
        handler late, right after the process goes on.
        """
        begun: dict[tuple[int, float], set[float]] = defaultdict(set)
        for handling in self.record.handlings:
            owners = self._explanations.owners(handling)
            if handling.process in owners:
                taken = self._explanations.taken(handling)
                if taken < handling.until and not self._explanations.survives(handling, taken):
                    self._found("two owners", f"{handling}, whose partition was acquired at {taken:.3f}")
                continue
            stop = self._explanations.thawed(handling.process, handling.began)
            if stop:
                late = begun[handling.process, stop.began]
                late.add(handling.began)
                if len(late) <= LATE_BEGINS:
                    self._late.add(id(handling))
                    self.figures[LATE] += 1
                    continue
            self._found("two owners", f"{handling}, and the owner is {sorted(owners) or 'no process'}")


class OwnOrderingQueue:
    """The messages of one transaction that share an ordering queue: their ids in order, and when each was settled."""

    def __init__(self, members: Sequence[tuple[str, float]]) -> None:
        self._members = members
        self._indexes = {id: index for index, (id, _) in enumerate(members)}
        self._latest = list(accumulate((ended if ended < NEVER else 0.0 for _, ended in members), max))

    def unsettled_before(self, handling: Handling) -> list[str]:
        """Return those before a message that were settled after it had begun."""
        index = self._indexes[handling.id]
        if not index or self._latest[index - 1] <= handling.began:
            return []
        return [id for id, ended in self._members[:index] if handling.began < ended < NEVER]


def pairs_after_success(handlings: Sequence[Handling]) -> list[tuple[Handling, Handling]]:
    """Return each handling that began after an earlier one which succeeded, with that one."""
    pairs = []
    for index, again in enumerate(handlings):
        firsts = [first for first in handlings[:index] if first.succeeded]
        if firsts:
            pairs.append((firsts[-1], again))
    return pairs
