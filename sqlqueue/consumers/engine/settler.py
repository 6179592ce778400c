"""The settler: executes settle plans and announces their outcomes, releases partitions, and stores progress. The
control thread calls it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from django.db import Error

from sqlqueue.consumers.background.duties import OutcomeCounter
from sqlqueue.consumers.background.task import Trouble
from sqlqueue.consumers.engine.in_flight import InFlight
from sqlqueue.consumers.engine.ownership import SERVER_CHANGED, TAKEN_OVER, UNWRITTEN, Ownership
from sqlqueue.consumers.engine.subscription import Subscription
from sqlqueue.core import effects, outcomes
from sqlqueue.core.effects import EffectWrite
from sqlqueue.core.logfmt import logfmt
from sqlqueue.core.partition.assigned import AssignedPartition
from sqlqueue.core.partition.ref import HeldLease
from sqlqueue.core.partition.settling import release_plan
from sqlqueue.core.settle_plan import Attempt, SettlePlan, SettleResult
from sqlqueue.database import retries
from sqlqueue.database.server_identity import ServerChanged, SessionReplaced
from sqlqueue.log.atomic import committed_effects
from sqlqueue.log.results import Reported, store_progress
from sqlqueue.log.settle import settle
from sqlqueue.log.settle_notices import Questions
from sqlqueue.signals import (
    announce,
    dead_lettered,
    deliveries_settled,
    delivery_failed,
    delivery_settled,
    messages_filtered,
)

logger = logging.getLogger("sqlqueue")

RELEASED_AT_ONCE = 200  # partitions; more if a single group has more
PROGRESS_EVERY = 1.0  # seconds between two writes of progress


class Settler:
    """Writes settle plans, or drops their partitions. `give_up` tells it to stop waiting for a database that is
    unreachable."""

    def __init__(self, ownership: Ownership, in_flight: InFlight, give_up: Callable[[], bool]):
        self.log, self.ownership, self.in_flight = ownership.log, ownership, in_flight
        self.outcome_counter = OutcomeCounter()
        self.settled = 0  # deliveries settled so far
        self.questions = Questions()
        # Called after a commit with what effects have written.
        self.tell_effects: Callable[[Sequence[EffectWrite]], None] = self._tell_effects
        self._give_up = give_up
        self._progress_at = 0.0  # when progress may be stored again
        self.trouble = Trouble("loop")  # the control thread's: what it settles, and all else that it does

    def execute(self, plans: Sequence[SettlePlan]) -> list[SettlePlan] | None:
        """Settle, again after every error that may pass; return the plans that were written, or None if `give_up`
        ended it.

        A plan is written, or its partition is dropped. Otherwise a later release could move the position past a
        message whose row a failed settle did not write. Raises ServerChanged if the server is not the one on which the
        partitions were taken: then the caller drops all of them.
        """
        try:
            results = retries.patiently(
                self.log, self.settle_on_the_same_server, plans, give_up=self._give_up, failed=self.trouble.failed
            )
        except BaseException as error:
            self._unclaim(plans)
            changed = isinstance(error, (ServerChanged, SessionReplaced))
            self.lose([plan.lease for plan in plans], SERVER_CHANGED if changed else UNWRITTEN)
            raise
        if results is None:
            self._unclaim(plans)
            self.lose([plan.lease for plan in plans], UNWRITTEN)  # a release would move past what was not written
            return None
        stale = [result.plan for result in results if result.stale]
        written = [result for result in results if not result.stale]
        for result in [each for each in written if each.settled or each.dead or each.plan.filtered]:
            self.settled += len(result.settled)
            if stored := result.plan.lease.stored_progress:
                stored.difference_update(each.offset for each in result.settled)
            self.outcome_counter.add(result)
            if self.questions:
                self.questions.answer(result.settled)
            self._announce(result)
        if effects.with_header():  # what they have written with a settle, or with the handlers' own transactions
            found = [each for result in written for each in (*result.effects, *committed_effects(result.settled))]
            if found:
                self.tell_effects(found)
        if stale:
            self._unclaim(stale)
            self.lose([plan.lease for plan in stale])
        return [result.plan for result in written]

    def _tell_effects(self, written: Sequence[EffectWrite]) -> None:
        """Tell them at once; what the database refuses now, they find out by themselves."""
        try:
            for effect, its in effects.by_effect(written).items():
                effect.committed(self.log, its)
        except Error as error:
            logger.warning(logfmt("effects_not_told", error_kind=retries.classify(error).name, error=error))

    def settle_on_the_same_server(self, plans: Sequence[SettlePlan]) -> list[SettleResult]:
        """Settle once. Raises ServerChanged if the server is not the one on which the partitions were taken, and
        SessionReplaced if that cannot be told because each statement runs in another session."""
        histories = {each.consumer.topic: each.history for each in self.ownership.subscriptions}
        for last in (False, False, True):
            self.ownership.server.make_sure()
            try:
                return settle(self.log, plans, self.ownership.subscriber, histories, time.monotonic())
            except SessionReplaced:
                if last:
                    raise
            except Error as error:
                if retries.classify(error) is retries.ErrorKind.GONE:
                    self.ownership.server.doubtful = True
                raise
        raise AssertionError("unreachable")

    def _unclaim(self, plans: Iterable[SettlePlan]) -> None:
        for plan in plans:
            for execution in plan.executions:
                self.in_flight.remove(execution.attempts)

    def lose(self, leases: Iterable[HeldLease], why: str = TAKEN_OVER) -> None:
        """Drop partitions, for this reason, and start nothing more of their executions."""
        self.ownership.lose(leases, why)
        self.in_flight.release_where(lambda execution, subscription: execution.lease.lost)

    def release(self, partitions: Mapping[Subscription, set[int]], now: float) -> None:
        """Settle the partitions under the leases of these numbers for the last time, and release the leases, several in
        one transaction."""
        some: dict[Subscription, set[int]] = {}
        for subscription, numbers in partitions.items():
            some[subscription] = numbers
            if sum(map(len, some.values())) >= RELEASED_AT_ONCE:
                self._release_some(some, now)
                some = {}
        if some:
            self._release_some(some, now)

    def _release_some(self, partitions: Mapping[Subscription, set[int]], now: float) -> None:
        plans = [
            release_plan(assigned, now)
            for subscription, numbers in partitions.items()
            for ref, assigned in subscription.assigned.items()
            if ref.partition in numbers
        ]
        try:
            settled = self.execute(plans)
        except (ServerChanged, SessionReplaced):
            settled = []  # the next owner recovers what was in flight
        if settled is not None:
            before = self.log.connection.connection
            retries.patiently(self.log, self.ownership.release, partitions, give_up=self._give_up)
            if self.log.connection.connection is not before:
                self.ownership.server.doubtful = True

    def store_progress(self, assigned_partitions: Sequence[AssignedPartition], now: float) -> None:
        """Store what handlers have reported last of each delivery, at most once a second, in one statement on the
        control thread's own connection: it is seen before an atomic handler commits, and no handler waits for it."""
        if now < self._progress_at:
            return
        reported: dict[Attempt, Reported] = {}
        for assigned in assigned_partitions:
            waiting = assigned.lease.progress
            for _ in range(len(waiting)):  # not while there are any: handlers may report faster
                attempt, said = waiting.popitem()
                # What is settled has no progress. An atomic handler's transaction is the only one that can write on
                # SQLite: to wait for it would hold up the whole process.
                if attempt.outcome is None and (self.log.dialect.gated or not assigned.options.atomic):
                    reported[attempt] = said
        if not reported:
            return
        self._progress_at = now + PROGRESS_EVERY
        try:
            store_progress(self.log, list(reported.items()))
        except Error:
            for attempt, said in reported.items():
                attempt.lease.progress.setdefault(attempt, said)
            raise
        for attempt in reported:
            attempt.lease.stored_progress.add(attempt.offset)

    def _announce(self, result: SettleResult) -> None:
        labels = {**result.plan.lease.labels, "database": self.log.label}
        if result.plan.filtered:
            announce(messages_filtered, Settler, **labels, count=result.plan.filtered)
        if result.settled and deliveries_settled.receivers:
            announce(deliveries_settled, Settler, **labels, attempts=result.settled)
        one_by_one = result.settled
        if not delivery_settled.receivers:  # nearly all are acks
            one_by_one = [each for each in result.settled if each[1].kind == outcomes.RETRIED]
        for attempt, outcome in one_by_one:
            fields = {
                **labels,
                "offset": attempt.offset,
                "attempt": attempt.number,
                "outcome": outcome.kind,
                "seconds": attempt.finished - attempt.started,
                "error": outcome.error,
            }
            announce(delivery_settled, Settler, **fields)
            if outcome.kind == outcomes.RETRIED:
                announce(delivery_failed, Settler, **fields)
        for dead_letter in result.dead:
            fields = {"offset": dead_letter.message.offset, "attempt": dead_letter.attempts, "error": dead_letter.error}
            announce(dead_lettered, Settler, **labels, **fields)
