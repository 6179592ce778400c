"""What may happen in a run because of what was done to it: which faults, and which takeovers, explain what was seen.

A message whose handler returned is dispatched again only if its process lost it before the settle. Two things are
needed for that: a fault that met the process in time, and a partition that was acquired anew.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict

from tests.soak.records import NEVER, Fault, Handling, Record
from tests.soak.schedule import ALTERATIONS
from tests.soak.workload import ALL_READERS, FLUSH_INTERVAL, LEASE_DURATION, VISIBILITY_TIMEOUT

ALIKE = {(reader.topic, reader.group): reader for reader in ALL_READERS}
SLACK = 8.0  # seconds: how long a settle may take on a busy machine
THAW = 5.0  # seconds after SIGCONT in which a thread of a process may still begin what it was about to
EARLIER = 2.0  # seconds before a lease ends in which it was renewed last at the latest, if nothing came between
LATE = "begun late by a stopped process"
STOPS = {"stop-consumer", "stop-publisher", "stop-alterer"}
# These end a process: nothing of it goes on that could be late.
LEAVES_NOTHING = {"kill-consumer", "handler-dies"}
RELEASES = {"leave", "kill-supervisor"}
# These do nothing to what a consumer has in flight: it is finished, or released.
HARMLESS = {
    *RELEASES,
    *(kind.name for kind in ALTERATIONS),
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


class Explanations:
    """The faults and takeovers of a run, by their time.

    one_writer: the database has one (SQLite): a process that is stopped while it writes holds up all others.
    """

    def __init__(self, record: Record, one_writer: bool) -> None:
        self.one_writer = one_writer
        self._faults = sorted(record.faults, key=lambda fault: fault.began)
        self._begins = [fault.began for fault in self._faults]
        self._longest = max((fault.ended - fault.began for fault in self._faults), default=0.0)
        self._blocked = record.blocked
        self._acquired: dict[tuple[str, str, int], list[tuple[float, int]]] = defaultdict(list)
        for at, process, topic, group, partition in sorted(record.acquired):
            self._acquired[topic, group, partition].append((at, process))
        self._released: dict[tuple[int, str, str, int], list[float]] = defaultdict(list)
        for at, process, topic, group, partition in record.released:
            self._released[process, topic, group, partition].append(at)

    def between(self, low: float, high: float) -> list[Fault]:
        """Return the faults that were at work in a span of time."""
        first = bisect_left(self._begins, low - self._longest)
        return [fault for fault in self._faults[first : bisect_left(self._begins, high)] if fault.ended >= low]

    def harmful(self, low: float, high: float) -> list[Fault]:
        """Return those of them that can make consumers lose what they have in flight."""
        return [fault for fault in self.between(low, high) if fault.kind not in HARMLESS or self._holds_up_all(fault)]

    def upon(self, process: int, low: float, high: float) -> list[Fault]:
        """Return those of a span of time that touched a process, or held up all."""
        return [fault for fault in self.between(low, high) if fault.touches(process) or self._holds_up_all(fault)]

    def _holds_up_all(self, fault: Fault) -> bool:
        return self.one_writer and fault.kind in STOPS

    def takeovers(self, handling: Handling, low: float, high: float) -> int:
        """Return how often the partition of a message was acquired in a span of time."""
        moments = self._acquired[handling.topic, handling.group, handling.partition]
        return bisect_left(moments, (high, -1)) - bisect_right(moments, (low, -1))

    def given_up(self, handling: Handling, low: float, high: float) -> bool:
        """Tell whether the process of a handling has released the partition in order in a span of time. It says so
        after its commit."""
        moments = self._released[handling.process, handling.topic, handling.group, handling.partition]
        return any(low <= at <= high + SLACK for at in moments)

    def owners(self, handling: Handling) -> set[int]:
        """Return the processes that may own the partition of a message when its handler begins: who said last that it
        had acquired it; and if that one had been stopped just before it said so, the one that said so before."""
        return self.owners_of((handling.topic, handling.group, handling.partition), handling.began)

    def owners_of(self, group_partition: tuple[str, str, int], moment: float) -> set[int]:
        """The same for a topic, group and partition at a moment."""
        moments = self._acquired[group_partition]
        found = set()
        for at, process in reversed(moments[: bisect_left(moments, (moment, -1))]):
            found.add(process)
            if self.thawed(process, at) is None:
                break
        return found

    def owners_between(self, group_partition: tuple[str, str, int], low: float, high: float) -> set[int]:
        """Return the processes that may have owned a partition in a span of time."""
        moments = self._acquired[group_partition]
        some = moments[bisect_left(moments, (low, -1)) : bisect_right(moments, (high, -1))]
        return self.owners_of(group_partition, low) | {process for _, process in some}

    def taken(self, handling: Handling) -> float:
        """Return when, after a handler began, its partition was first acquired by another process."""
        moments = self._acquired[handling.topic, handling.group, handling.partition]
        later = moments[bisect_right(moments, (handling.began, -1)) :]
        return next((at for at, by in later if by != handling.process and self.thawed(by, at) is None), NEVER)

    def cut_off(self, process: int, at: float) -> bool:
        """Tell whether a fault may have kept a process until this moment from renewing, for as long as a lease lasts,
        what the tables lend it."""
        since = at - LEASE_DURATION
        return any(
            fault.touches(process) or self._holds_up_all(fault) for fault in self.harmful(since, since + EARLIER)
        )

    def survives(self, handling: Handling, taken: float) -> bool:
        """Tell whether a handler may still run when its partition is taken: it is over its time, or its process has
        lost it, or was told to leave and did not wait longer."""
        return overran(handling, taken) or bool(self.fault_upon(handling, taken)) or self.released(handling, taken)

    def thawed(self, process: int, at: float) -> Fault | None:
        """Return the stop after which a process goes on at this moment, if there is one."""
        stops = ("stop-consumer", "hang-consumer", "machine-stalled")
        for fault in self.between(at - THAW, at):
            if fault.kind in stops and fault.touches(process):
                return fault
        return None

    def loss(self, first: Handling, again: Handling) -> str:
        """Return what explains that a process no longer had a message in flight when it was handled again: an overrun,
        or a fault that met the process between the handler's beginning and the settle; "" if nothing does."""
        if overran(first, again.began):
            return "overrun"
        if not ALIKE[first.topic, first.group].atomic and not self.takeovers(first, first.began, again.began):
            return ""  # its owner has always held it
        return self.fault_upon(first, again.began)

    def fault_upon(self, first: Handling, until: float) -> str:
        """Return the kind of a fault that may have cost a process what it was handling; "" if there was none."""
        # A fault's effects last: a lease that was not renewed in time ends after it.
        for fault in self.harmful(first.began - LEASE_DURATION, min(until, in_flight_until(first))):
            lasts = fault.ended if fault.kind in LEAVES_NOTHING else fault.ended + LEASE_DURATION
            if lasts >= first.began and (fault.touches(first.process) or self._holds_up_all(fault)):
                return fault.kind
        return ""

    def released(self, first: Handling, until: float) -> bool:
        """Tell whether a process that was told to leave may have released a message, which charges no attempt."""
        faults = self.between(first.began - SLACK, min(until, self._settled_by(first)))
        return any(fault.kind in RELEASES and fault.touches(first.process) for fault in faults)

    def _settled_by(self, first: Handling) -> float:
        """Return the moment by which a handler's outcome is settled: after a fault that comes between has ended."""
        high = in_flight_until(first)
        held_up = [fault for fault in self.harmful(first.began, high) if fault.touches(first.process)]
        return max([high, *(fault.ended + FLUSH_INTERVAL + SLACK for fault in held_up)])

    def rolled_back(self, first: Handling, until: float) -> bool:
        """Tell whether the engine's own statements may have failed in an atomic handler's transaction, since a fault
        met the connections of a process that lived on: that charges no attempt."""
        if not ALIKE[first.topic, first.group].atomic or first.outcome == "fail":
            return False
        faults = self.harmful(first.began, min(until, in_flight_until(first)))
        return any(fault.touches(first.process) and fault.kind not in LEAVES_NOTHING for fault in faults)

    def held_up(self, first: Handling, until: float) -> bool:
        """Tell whether another handler may have kept an async one from going on until it was over its time: that
        charges no attempt."""
        spans = [(began, ended) for began, ended, process in self._blocked if process == first.process]
        is_async = ALIKE[first.topic, first.group].is_async
        return is_async and overran(first, until) and any(low < until and first.began < high for low, high in spans)


def in_flight_until(handling: Handling) -> float:
    """Return the moment by which a handler's outcome is settled if nothing comes between."""
    return NEVER if handling.ended is None else handling.ended + FLUSH_INTERVAL + SLACK


def overran(handling: Handling, now: float) -> bool:
    """Tell whether a handler was over its visibility timeout, at its end or now."""
    return min(handling.ended if handling.ended is not None else now, now) - handling.began >= VISIBILITY_TIMEOUT * 0.95


def rerun(first: Handling, again: Handling) -> bool:
    """Tell whether an atomic handler was run again in place, because the database had rolled it back."""
    alike = first.process == again.process and first.attempt == again.attempt and first.until <= again.began
    return alike and ALIKE[first.topic, first.group].atomic
