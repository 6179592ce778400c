"""Finds what went wrong in a run, from what outsiders can see: what publishers were told, what handlers wrote down,
what consumers announced, what was done to whom, and the tables at the end.

Every figure is a count; those of VIOLATIONS must be 0.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate

from tests.soak.records import NEVER, Fault, Handling, Record, Transaction, by_message
from tests.soak.workload import FLUSH_INTERVAL, LEASE_DURATION, MAX_ATTEMPTS, READERS, VISIBILITY_TIMEOUT

VIOLATIONS = {
    "lost": "committed, as the publisher was told, and neither handled nor a dead letter",
    "never published": "handled, and taken back or never published",
    "torn": "a transaction in doubt of which some messages are there, and others are not",
    "delivered after the ack": "handled again after the ack had been confirmed",
    "out of order": "begun while an earlier message of its lane was unsettled",
    "two at once": "two messages of one lane side by side in one process",
    "unexplained duplicates": "handled again, and no fault within the time tells why",
    "effects twice": "an atomic handler's writes committed more than once",
    "effects lost": "acked by an atomic handler whose writes are not there",
    "attempts wrong": "an attempt's number twice, or raised with neither a handling nor a fault",
    "buried without reason": "a dead letter that was neither rejected nor out of attempts",
    "two owners": "begun by a process whose partition was somebody else's",
    "left behind": "rows that nobody needs any more",
}
ALIKE = {(reader.topic, reader.group): reader for reader in READERS}
SLACK = 5.0  # seconds: how long a settle may take on a busy machine
THAW = 2.0  # seconds after SIGCONT in which a process may still begin what it was about to


class Checker:
    """The findings of one run. `problems` has a line for each of the first violations of a kind."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.figures: Counter[str] = Counter()
        self.problems: list[str] = []
        self.duplicates: Counter[str] = Counter()  # by what explains them
        self._handled = by_message(record.handlings)
        # Those of a batch begin together, in the order of the list.
        self._batches = {(h.process, h.began, h.topic, h.group, h.id) for h in record.handlings}
        self._published: dict[tuple[str, str], Transaction] = {
            (topic, id): transaction for transaction in record.transactions for topic, _, id in transaction.messages
        }
        self._dead = {(letter.topic, letter.group, letter.id) for letter in record.dead}
        # Faults that can make a consumer lose what it has in hand, by their beginning.
        self._faults = sorted(record.faults, key=lambda fault: fault.began)
        self._longest = max((fault.ended - fault.began for fault in self._faults), default=0.0)
        self._begins = [fault.began for fault in self._faults]

    def check(self) -> Checker:
        """Look for everything; return itself."""
        self._look_for_lost_ones()
        self._look_for_unpublished_ones()
        self._look_at_doubtful_transactions()
        self._look_behind_acks()
        self._look_at_order()
        self._look_at_company()
        self._look_at_duplicates()
        self._look_at_effects()
        self._look_at_attempts()
        self._look_at_dead_letters()
        self._look_at_owners()
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

    def _done(self, topic: str, group: str, id: str) -> bool:
        handlings = self._handled.get((topic, group, id), ())
        return (topic, group, id) in self._dead or any(handling.succeeded for handling in handlings)

    def _look_for_lost_ones(self) -> None:
        for transaction in self.record.transactions:
            if transaction.told is None:
                continue
            for topic, key, id in transaction.messages:
                for reader in READERS:
                    if reader.topic == topic and not self._done(topic, reader.group, id):
                        self._found("lost", f"{id} (key {key}) of {topic} for {reader.group}")

    def _look_for_unpublished_ones(self) -> None:
        for topic, group, id in self._handled:
            transaction = self._published.get((topic, id))
            if transaction is None or transaction.back:
                self._found("never published", f"{id} of {topic} for {group}")

    def _look_at_doubtful_transactions(self) -> None:
        for transaction in self.record.transactions:
            if transaction.told is not None or transaction.back:
                continue
            for group in {reader.group for reader in READERS}:
                mine = [(t, id) for t, _, id in transaction.messages if (t, group) in ALIKE]
                done = {id for topic, id in mine if self._done(topic, group, id)}
                if done and len(done) < len(mine):
                    self._found("torn", f"{sorted(done)} of {mine} for {group}")

    def _look_behind_acks(self) -> None:
        """An offset alone says little: a server that crashed may have given it to another message."""
        acked: dict[tuple[str, str, str], float] = {}
        latest: dict[tuple[int, str, str, int, int], str] = {}
        for handling in self.record.handlings:
            place = (handling.process, handling.topic, handling.group, handling.offset, handling.attempt)
            latest[place] = handling.id
        for at, process, topic, group, offset, attempt, outcome in self.record.settled:
            id = latest.get((process, topic, group, offset, attempt))
            if outcome == "acked" and id is not None:
                acked.setdefault((topic, group, id), at)
        for place, at in acked.items():
            for handling in self._handled[place]:
                if handling.began > at:
                    late = handling.began - at
                    self._found("delivered after the ack", f"{handling}, {late:.3f} s after it was confirmed")
        self.figures["acks confirmed"] = len(acked)

    # -- order --------------------------------------------------------------------------------------------------------

    def _lane(self, handling: Handling, key: str) -> str | None:
        ordering = ALIKE[handling.topic, handling.group].ordering
        return {"key": key, "partition": f"partition {handling.partition}", "none": None}[ordering]

    def _look_at_order(self) -> None:
        """Before a handler begins, every message of its lane is settled that had been committed, and its publisher
        told, before this one's publisher began; and of its own transaction those that were published before it."""
        keys = {(topic, id): key for each in self.record.transactions for topic, key, id in each.messages}
        lanes: dict[tuple[str, str, str], list[tuple[float, float, str]]] = defaultdict(list)
        begins: dict[tuple[str, str, str], list[Handling]] = defaultdict(list)
        done: dict[tuple[str, str, str], float] = {}
        for (topic, group, id), handlings in self._handled.items():
            transaction = self._published.get((topic, id))
            lane = self._lane(handlings[0], keys[topic, id]) if transaction else None
            if transaction is None or lane is None:
                continue
            ended = settled_at(handlings, (topic, group, id) in self._dead)
            done[topic, group, id] = ended
            begins[topic, group, lane] += handlings
            if transaction.told is not None and ended < NEVER:
                lanes[topic, group, lane].append((transaction.told, ended, id))
        for place, handlings in begins.items():
            ordered = sorted(lanes[place])
            told = [at for at, _, _ in ordered]
            latest = list(accumulate((ended for _, ended, _ in ordered), max))
            for handling in handlings:
                transaction = self._published[handling.topic, handling.id]
                earlier = bisect_left(told, transaction.began)
                if earlier and latest[earlier - 1] > handling.began:
                    unsettled = (id for _, ended, id in ordered[:earlier] if ended > handling.began)
                    late = next((id for id in unsettled if not self._of_one_batch(handling, id)), None)
                    if late is not None:
                        self._found("out of order", f"{handling} before {late}")
                self._look_at_own_transaction(handling, transaction, keys, done)

    def _of_one_batch(self, handling: Handling, id: str) -> bool:
        return (handling.process, handling.began, handling.topic, handling.group, id) in self._batches

    def _look_at_own_transaction(
        self,
        handling: Handling,
        transaction: Transaction,
        keys: dict[tuple[str, str], str],
        done: dict[tuple[str, str, str], float],
    ) -> None:
        key = keys[handling.topic, handling.id]
        for topic, other_key, id in transaction.messages:
            if id == handling.id:
                break
            ended = done.get((topic, handling.group, id), 0.0)
            early = handling.began < ended < NEVER and not self._of_one_batch(handling, id)
            if (topic, other_key) == (handling.topic, key) and early:
                self._found("out of order", f"{handling} before {id} of its own transaction")

    def _look_at_company(self) -> None:
        """Messages of a lane run one after another in a process, but for one that is over its time."""
        keys = {(topic, id): key for each in self.record.transactions for topic, key, id in each.messages}
        last: dict[tuple[int, str, str, str], Handling] = {}
        for handling in self.record.handlings:
            key = keys.get((handling.topic, handling.id))
            lane = self._lane(handling, key) if key is not None else None
            if lane is None:
                continue
            place = (handling.process, handling.topic, handling.group, lane)
            before = last.get(place)
            last[place] = handling
            if before is None or before.began == handling.began:  # of one batch
                continue
            overlap = before.ended is not None and before.ended > handling.began
            if overlap and not overran(before, handling.began) and not self._explained(before, handling):
                self._found("two at once", f"{before} and {handling}")

    # -- duplicates, effects, attempts --------------------------------------------------------------------------------

    def _explained(self, first: Handling, again: Handling) -> str:
        """Return what explains that a message was handled again: a fault that met the first one's process between its
        beginning and its settle; "" if nothing does."""
        if overran(first, again.began):
            return "overrun"
        settle = first.until + FLUSH_INTERVAL + SLACK
        # A fault's effects last: a lease that was not renewed in time ends after it.
        for fault in self._between(first.began - LEASE_DURATION, min(again.began, settle)):
            lasts = fault.ended if fault.kind in LEAVES_NOTHING else fault.ended + LEASE_DURATION
            if lasts >= first.began and fault.touches(first.process) and fault.kind not in HARMLESS:
                return fault.kind
        return ""

    def _between(self, low: float, high: float) -> Sequence[Fault]:
        """Return the faults that began in a span of time, and those before it that may have reached into it."""
        start = bisect_left(self._begins, low - self._longest)
        return self._faults[start : bisect_left(self._begins, high)]

    def _look_at_duplicates(self) -> None:
        for place, handlings in self._handled.items():
            for first, again in pairs_after_success(handlings):
                why = self._explained(first, again)
                if not why and ALIKE[place[:2]].atomic and rerun(first, again):
                    why = "a deadlock's rerun"
                self.duplicates[why or "nothing"] += 1
                self.figures["duplicates"] += 1
                if not why:
                    self._found("unexplained duplicates", f"{again} after {first}")

    def _look_at_effects(self) -> None:
        for (group, id), count in self.record.entries.items():
            if count > 1:
                self._found("effects twice", f"{id} for {group}: {count} times", count - 1)
        for reader in READERS:
            if not reader.atomic:
                continue
            for topic, group, id in self._handled:
                if (topic, group) != (reader.topic, reader.group) or (topic, group, id) in self._dead:
                    continue
                transaction = self._published.get((topic, id))
                if transaction and transaction.told is not None and not self.record.entries.get((group, id)):
                    self._found("effects lost", f"{id} for {group}")

    def _look_at_attempts(self) -> None:
        for (topic, group, id), handlings in self._handled.items():
            by_offset: dict[int, list[Handling]] = defaultdict(list)
            for handling in handlings:
                by_offset[handling.offset].append(handling)
            for one in by_offset.values():
                self._look_at_attempts_of(topic, group, id, one)

    def _look_at_attempts_of(self, topic: str, group: str, id: str, handlings: list[Handling]) -> None:
        charged: set[int] = set()
        before: Handling | None = None
        for handling in handlings:
            if handling.attempt in charged and before is not None:
                handed_back = self._met_by(before, handling, {"leave", "kill-supervisor"})
                if not handed_back and not (ALIKE[topic, group].atomic and rerun(before, handling)):
                    self._found("attempts wrong", f"{handling} has the same attempt as {before}")
            extra = handling.attempt - 1 - len({attempt for attempt in charged if attempt < handling.attempt})
            if extra > 0:
                published = self._published.get((topic, id))
                since = published.began if published else handling.began
                faults = [fault for fault in self._between(since, handling.began) if fault.kind not in HARMLESS]
                if len(faults) < extra:
                    self._found("attempts wrong", f"{handling} after {sorted(charged)} and {len(faults)} faults")
            if handling.outcome != "postpone":
                charged.add(handling.attempt)
            before = handling

    def _met_by(self, first: Handling, again: Handling, kinds: Iterable[str]) -> bool:
        faults = self._between(first.began - SLACK, again.began)
        return any(fault.kind in kinds and fault.touches(first.process) for fault in faults)

    def _look_at_dead_letters(self) -> None:
        for letter in self.record.dead:
            handlings = self._handled.get((letter.topic, letter.group, letter.id), [])
            rejected = any(handling.outcome == "reject" for handling in handlings)
            tries = {handling.attempt for handling in handlings if not handling.succeeded or overran(handling, NEVER)}
            if not rejected and max(tries, default=0) < MAX_ATTEMPTS:
                self._found("buried without reason", f"{letter} after {handlings}")
        self.figures["dead letters"] = len(self.record.dead)

    # -- owners -------------------------------------------------------------------------------------------------------

    def _look_at_owners(self) -> None:
        """Whoever begins has acquired the partition last. One that is stopped between its last look at the lease and
        the beginning may begin late, right after it goes on."""
        acquired: dict[tuple[str, str, int], list[tuple[float, int]]] = defaultdict(list)
        for at, process, topic, group, partition in self.record.acquired:
            acquired[topic, group, partition].append((at, process))
        for handling in self.record.handlings:
            owners = acquired[handling.topic, handling.group, handling.partition]
            place = bisect_left(owners, (handling.began, 0)) - 1
            if place < 0 or owners[place][1] == handling.process:
                continue
            if self._just_thawed(handling):
                self.figures["begun late by a stopped process"] += 1
                continue
            self._found("two owners", f"{handling}, and {owners[place][1]} since {owners[place][0]:.3f}")

    def _just_thawed(self, handling: Handling) -> bool:
        stops = ("stop-consumer", "machine-stalled")
        faults = self._between(handling.began - LEASE_DURATION - THAW, handling.began)
        return any(
            fault.kind in stops and fault.touches(handling.process) and handling.began <= fault.ended + THAW
            for fault in faults
        )


# After these nothing of the victim goes on that could be late.
LEAVES_NOTHING = {"kill-consumer", "handler-dies"}
# These do nothing to what a consumer has in hand: it is finished, or handed back.
HARMLESS = {
    "leave",
    "kill-supervisor",
    "kill-publisher",
    "stop-publisher",
    "join",
    "shift-clock",
    "pause-topic",
    "cut-publishers",
    "delay-publishers",
    "lose-replies-publishers",
    "silence-publishers",
}


def settled_at(handlings: Sequence[Handling], dead: bool) -> float:
    """Return when a message was done for its group: at its first success's end, or, dead, at its last end."""
    successes = [handling.until for handling in handlings if handling.succeeded]
    if successes:
        return min(successes)
    return max(handling.until for handling in handlings) if dead else NEVER


def overran(handling: Handling, now: float) -> bool:
    """Tell whether a handler was over its visibility timeout, at its end or now."""
    return min(handling.ended if handling.ended is not None else now, now) - handling.began >= VISIBILITY_TIMEOUT * 0.95


def rerun(first: Handling, again: Handling) -> bool:
    """Tell whether an atomic handler was run again in place, because the database had rolled it back."""
    return first.process == again.process and first.attempt == again.attempt and first.until <= again.began


def pairs_after_success(handlings: Sequence[Handling]) -> list[tuple[Handling, Handling]]:
    """Return each handling that began after an earlier one which succeeded, with that one."""
    pairs = []
    for place, again in enumerate(handlings):
        firsts = [first for first in handlings[:place] if first.succeeded]
        if firsts:
            pairs.append((firsts[-1], again))
    return pairs
