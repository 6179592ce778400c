"""The dispatcher: chooses which attempts run next, and starts them.

Only the control thread calls it and changes assigned partitions; handlers' threads only report outcomes. A claim is
written before its attempts start. The settler writes outcomes and the next claims of all partitions in one transaction.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from functools import partial

from sqlqueue.conf import settings
from sqlqueue.consumers.engine.in_doubt import InDoubtPhases
from sqlqueue.consumers.engine.in_flight import ExecutorLoad, InFlight
from sqlqueue.consumers.engine.ownership import Ownership
from sqlqueue.consumers.engine.reader import Reader
from sqlqueue.consumers.engine.reserved_threads import ReservedThreads
from sqlqueue.consumers.engine.settler import Settler
from sqlqueue.consumers.engine.subscription import Subscription
from sqlqueue.consumers.engine.throttle import (
    Capacity,
    Level,
    Pace,
    PriorityShares,
    Throttle,
    UrgencyQuotas,
    by_urgency,
    level_of,
)
from sqlqueue.consumers.handlers.pools import MakePool, ThreadPool
from sqlqueue.core import outcomes
from sqlqueue.core.outcomes import Outcome
from sqlqueue.core.partition import settling
from sqlqueue.core.partition.assigned import AssignedPartition
from sqlqueue.core.partition.ref import HeldLease
from sqlqueue.core.settle_plan import Attempt, Execution, SettlePlan
from sqlqueue.signals import announce, deliveries_dispatched


class Room:
    """What may still be dispatched to a capacity under its present load, and what is chosen for it.

    deliveries, executions: how many, of which a batch counts as one; of_ordering_queue: at most so many of one, as one
    execution.
    """

    def __init__(self, throttle: Throttle, load: ExecutorLoad, assigned_partitions: Sequence[AssignedPartition]):
        self.deliveries, self.executions = throttle.room(*load), throttle.fewest - load.executions
        queues = sum([assigned.candidates for assigned in assigned_partitions])
        # A single queue gets all the room: one attempt at a time would cost a transaction each.
        self.of_ordering_queue = max(1, self.deliveries // max(1, min(queues, throttle.fewest)))
        self.chosen: dict[AssignedPartition, list[Execution]] = {}

    def by_level(self) -> dict[Level, int]:
        """Return how many messages were chosen of each priority."""
        counts: dict[Level, int] = {}
        for assigned, executions in self.chosen.items():
            level = level_of(assigned)
            counts[level] = counts.get(level, 0) + sum(len(each.attempts) for each in executions)
        return counts


class Dispatcher:
    """Dispatches for one process, up to what its throttle lets be in flight. It sets `awake` when the control thread
    should run."""

    def __init__(
        self,
        ownership: Ownership,
        reader: Reader,
        settler: Settler,
        threads: int | None,
        pool: MakePool | None,
        awake: threading.Event,
    ):
        threads = threads or settings.THREADS
        self.ownership, self.reader, self.settler = ownership, reader, settler
        self.in_flight: InFlight = settler.in_flight
        self.throttle, self.pace = Throttle(threads), Pace()
        make_pool = pool or partial(ThreadPool, threads)
        self.pool = make_pool(self._report, self.in_flight.ended.append)
        self._reserved: Mapping[Subscription, Capacity] = {}  # what is reserved for a group
        self.reserved_threads: ReservedThreads | None = None  # where several groups share threads
        if len(ownership.subscriptions) > 1 and isinstance(self.pool, ThreadPool):
            self.reserved_threads = ReservedThreads(ownership, self.in_flight, self.pool, self.throttle, threads)
            self._reserved = self.reserved_threads.reserved
        self._awake = awake
        self._phases: InDoubtPhases | None = None  # None: no message is in doubt
        self._in_threads, self._on_loop = Capacity(self.throttle), Capacity(self.throttle)
        self._urgent = any(each.consumer.options.urgency for each in ownership.subscriptions)

    # -- outcomes -----------------------------------------------------------------------------------------------------

    def _report(self, attempt: Attempt, outcome: Outcome) -> None:
        """Queue an outcome for the control thread. Handlers' threads call it."""
        self.in_flight.reports.append((attempt, outcome))
        wanted = outcome.kind != outcomes.ACKED or len(self.in_flight.reports) >= self.throttle.low
        # The control thread clears it before it takes the reports, so one that is set is enough.
        if wanted and not self._awake.is_set():
            self._awake.set()

    def apply_reports(self, now: float) -> bool:
        """Apply the reported outcomes; return whether any of them changed anything."""
        applied = finished = 0
        # Taken before their reports, of which none may be missing.
        ended = [self.in_flight.ended.popleft() for _ in range(len(self.in_flight.ended))]
        for lease, reports in self.in_flight.take_reports().items():
            count = self.finish(lease, reports, now)
            applied += count
            if (reserved := self._reserved.get(lease.subscription)) is not None:
                reserved.throttle.finished(count, now)
            else:
                finished += count
        self.in_flight.end_all(ended)
        self.throttle.finished(finished, now)
        return applied > 0

    def finish(self, lease: HeldLease, reports: Sequence[tuple[Attempt, Outcome]], now: float) -> int:
        """Apply the outcomes of attempts under one lease; return of how many. The others are ignored: another one was
        applied, or the lease is lost."""
        if lease.lost:
            return 0
        subscription = lease.subscription
        if self.reserved_threads is not None and any(attempt.started for attempt, _ in reports):
            self.reserved_threads.ran(subscription, now)
        limiter, key_rate = subscription.limiter, subscription.key_rate
        if limiter is not None:
            for attempt, outcome in reports:
                limiter.finished(attempt, outcome)
        if key_rate is not None:
            for attempt, outcome in reports:
                if outcome is outcomes.EXPIRED:
                    key_rate.give_back(attempt.message.key)
        return subscription.assigned[lease.ref].finish_all(reports, now)

    # -- dispatch -----------------------------------------------------------------------------------------------------

    def advance(self, assigned_partitions: Sequence[AssignedPartition], now: float, dispatch: bool) -> bool:
        """Write the outcomes of all partitions and, with `dispatch`, their next claims; start what was claimed.

        Returns whether anything was written.
        """
        if dispatch and self.reserved_threads is not None and not self.in_flight.alone:
            self.reserved_threads.look(assigned_partitions, now)
        chosen = self._choose(assigned_partitions, now) if dispatch else {}
        # Beside executions that take every thread, a reserved thread's outcomes are few of what is in flight.
        self.throttle.low = 0.0 if self._reserved else len(self.in_flight) / 2
        plans: list[SettlePlan] = []
        started: list[Execution] = []  # at first those that are claimed already
        linger = self.pace.linger if dispatch else 0.0
        for assigned in assigned_partitions:
            executions = chosen.get(assigned, [])
            if executions or assigned.active:
                subscription = assigned.lease.subscription
                end = self._claims_to(assigned) if dispatch else 0
                # A crash would not bring back the receipt of what a handler's own transaction has acked.
                waits = 0.0 if assigned.options.atomic and subscription.history == "all" else linger
                watermark = assigned.writes.watermark
                plan = settling.plan(assigned, now, settings.FLUSH_INTERVAL, executions, waits, end)
                if plan is not None:
                    plans.append(plan)
                    if plan.settled or plan.watermark > watermark:
                        subscription.progressed_at = now
                else:
                    started += executions
        if not plans and not started:
            return False
        # What is claimed already starts after it, too: an outcome that is written may be that of one alone in doubt.
        written = self._write(plans, started, now)
        if written is None:
            return False
        for plan in written:
            started += plan.executions
        self._start(started)
        return True

    def _claims_to(self, assigned: AssignedPartition) -> int:
        """Return up to where a partition may be claimed ahead; 0: not at all."""
        subscription = assigned.lease.subscription
        limited = subscription.limiter is not None or subscription.key_rate is not None
        if not self.pace.ahead or limited or not self.ownership.may_dispatch(assigned):
            return 0
        return self.reader.log_end.highest + self.pace.ahead

    def _write(self, plans: list[SettlePlan], claimed: list[Execution], now: float) -> list[SettlePlan] | None:
        """Execute plans; return those that were written, None if that was given up. Then, and after an error, nothing
        of `claimed` starts."""
        written: list[SettlePlan] | None = None
        try:
            written = self.settler.execute(plans) if plans else []
        finally:
            if written is None:
                for execution in claimed:
                    self.in_flight.release(execution)
        for plan in written or ():
            if not plan.lease.lost:
                settling.was_written(plan.lease.subscription.assigned[plan.lease.ref], plan, now)
        return written

    def _start(self, started: list[Execution]) -> None:
        if deliveries_dispatched.receivers:
            counts: dict[HeldLease, int] = {}
            for execution in started:
                counts[execution.lease] = counts.get(execution.lease, 0) + len(execution.attempts)
            database = self.ownership.log.label
            for lease, count in counts.items():
                announce(deliveries_dispatched, Dispatcher, **lease.labels, count=count, database=database)
        for execution in by_urgency(started) if self._urgent else started:
            subscription = execution.lease.subscription
            self.in_flight.start(execution, subscription)
            self.pool.submit(subscription.executor, execution, subscription in self._reserved)

    def _choose(
        self, assigned_partitions: Sequence[AssignedPartition], now: float
    ) -> dict[AssignedPartition, list[Execution]]:
        """Choose what to dispatch. A message in doubt is dispatched alone: nothing else is in flight in the whole
        process until it is settled."""
        if self.in_flight.alone:
            return {}
        in_doubt = [assigned for assigned in assigned_partitions if assigned.in_doubt.entries]
        if not in_doubt:
            self._phases = None
            return self._choose_others(assigned_partitions, now)
        phases = self._phases = self._phases or InDoubtPhases()
        if phases.of_others(now):
            others = self._choose_others(assigned_partitions, now)
            if others or self.in_flight:
                return others
        return self._choose_in_doubt(phases, in_doubt, assigned_partitions, now)

    def _choose_in_doubt(
        self,
        phases: InDoubtPhases,
        in_doubt: Sequence[AssignedPartition],
        assigned_partitions: Sequence[AssignedPartition],
        now: float,
    ) -> dict[AssignedPartition, list[Execution]]:
        for assigned in phases.by_last_dispatch(in_doubt):
            if not self.ownership.may_dispatch(assigned):
                continue
            self.reader.leave_out(assigned, now)
            offset, subscription = assigned.in_doubt.first(), assigned.lease.subscription
            if offset is None or (subscription.limiter is not None and not subscription.limiter.admits(now)):
                continue
            if self.in_flight:
                if phases.waits(now, {each.group_topic for each in self.in_flight.executions.values()}):
                    return {}
                break
            if not phases.lasts(now):
                break
            self.reader.load([(assigned, [offset])], now)
            executions = assigned.choose_alone(offset, now)
            if executions:
                if subscription.key_rate is not None:
                    subscription.key_rate.start(executions[0].attempts[0].message.key, now)
                self.in_flight.alone = True
                phases.was_dispatched(assigned)
                self._claim(assigned, executions)
                return {assigned: executions}
        else:
            self._phases = None
        return self._choose_others(assigned_partitions, now)

    def _choose_others(
        self, assigned_partitions: Sequence[AssignedPartition], now: float
    ) -> dict[AssignedPartition, list[Execution]]:
        order = self.throttle.rotated(assigned_partitions)
        if self._phases is not None and (held_back := self._phases.held_back):
            order = [each for each in order if each.lease.subscription.group_topic not in held_back]
        reserved = self._reserved
        in_threads, on_loop = self.in_flight.loads(reserved)
        loads = {self._in_threads: in_threads, self._on_loop: on_loop}
        loads |= {capacity: self.in_flight.load_of(subscription) for subscription, capacity in reserved.items()}
        by_capacity: dict[Capacity, list[AssignedPartition]] = {}
        for assigned in order:
            subscription = assigned.lease.subscription
            usual = self._on_loop if subscription.consumer.is_async else self._in_threads
            by_capacity.setdefault(reserved.get(subscription, usual), []).append(assigned)
        chosen: dict[AssignedPartition, list[Execution]] = {}
        for capacity, some in by_capacity.items():
            # Each under its present load: one that is blocked does not delay the others.
            chosen.update(self._choose_for(capacity.shares, Room(capacity.throttle, loads[capacity], some), some, now))
        return chosen

    def _choose_for(
        self, shares: PriorityShares, room: Room, assigned_partitions: Sequence[AssignedPartition], now: float
    ) -> dict[AssignedPartition, list[Execution]]:
        quotas = UrgencyQuotas(assigned_partitions) if self._urgent else None
        # They are in the order of their priorities, so without priorities the last one has none.
        waiting = self._waiting(assigned_partitions) if assigned_partitions[-1].ref.priority else {}
        given: dict[Level, int] = {}
        if waiting:
            for level in waiting:
                owed = int(shares.owed.get(level, 0.0))
                for assigned in assigned_partitions:
                    if level_of(assigned) == level:
                        owed -= self._take(assigned, owed, room, now)
            given = room.by_level()
        for assigned in assigned_partitions:
            if room.deliveries <= 0:
                break
            most = room.deliveries if quotas is None else quotas.of(assigned, room.deliveries)
            self._take(assigned, most, room, now)
        if waiting:
            shares.were_dispatched(waiting, given, room.by_level())
        return room.chosen

    def _waiting(self, assigned_partitions: Sequence[AssignedPartition]) -> dict[Level, float]:
        """Return the lower priorities of which something may be dispatched, with their shares."""
        return {
            level_of(assigned): assigned.lease.subscription.share(assigned.ref.priority)
            for assigned in assigned_partitions
            if assigned.ref.priority and assigned.has_candidates and self.ownership.may_dispatch(assigned)
        }

    def _take(self, assigned: AssignedPartition, most: int, room: Room, now: float) -> int:
        """Choose at most `most` messages of a partition; return how many were chosen."""
        options, subscription = assigned.options, assigned.lease.subscription
        most = min(most, room.deliveries, options.batch_size)
        if most <= 0 or not assigned.has_candidates or (options.together and room.executions <= 0):
            return 0
        if not self.ownership.may_dispatch(assigned) or now >= assigned.lease.deadline:
            return 0
        allowed = handlers = sys.maxsize
        if (limiter := subscription.limiter) is not None:
            if not limiter.admits(now):
                return 0
            allowed, handlers = limiter.messages(now), limiter.executions(now)
        executions = assigned.choose(most, room.of_ordering_queue, allowed, handlers, subscription.key_rate, now)
        if not executions:
            return 0
        room.chosen.setdefault(assigned, []).extend(executions)
        messages = 0
        for execution in executions:
            messages += len(execution.attempts)
        room.deliveries -= len(executions) if options.together else messages
        room.executions -= len(executions)
        self._claim(assigned, executions)
        return messages

    def _claim(self, assigned: AssignedPartition, executions: Sequence[Execution]) -> None:
        if (limiter := assigned.lease.subscription.limiter) is not None:
            limiter.started(executions)
        self.in_flight.add(executions)
