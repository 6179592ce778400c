"""Running handlers: what happens between a run's start and its outcomes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from django.db import Error, connections, transaction

from sqlqueue.consumers.delivery import Delivery
from sqlqueue.consumers.registry import Consumer
from sqlqueue.core import outcomes
from sqlqueue.core.lines import line
from sqlqueue.core.outcomes import COMMITTED, SUCCESS, SUPERSEDED, UNSTARTED, Outcome
from sqlqueue.core.plan import Hand, Run
from sqlqueue.database import faults
from sqlqueue.database.dialects import begin, dialect
from sqlqueue.database.faults import Fault
from sqlqueue.exceptions import LeaseLost, Settlement
from sqlqueue.log.atomic import settle_run, was_committed
from sqlqueue.observe.in_hand import InHand

logger = logging.getLogger("sqlqueue")
now = time.monotonic

Report = Callable[[Hand, Outcome], None]
CONNECTIONS_LAST = 1.0  # seconds
NOT_BEGUN_PAUSE = 0.1  # seconds
ATOMIC_TRIES = 3  # of a handler whose transaction met a deadlock: rolled back, so it is simply run again


def close_stale_connections() -> None:
    """Close this thread's connections that are too old or broken, as Django's request cycle does."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


_care = threading.local()


def care_for_connections(failed: bool = False) -> None:
    """Close stale connections before and after deliveries, but at most once a second while they follow each other
    without a failure: CONN_MAX_AGE = 0 would otherwise mean a new connection for each of thousands of messages a
    second."""
    moment = now()
    if failed or moment - getattr(_care, "taken", 0.0) >= CONNECTIONS_LAST:
        _care.taken = moment
        close_stale_connections()


class Handling:
    """How the deliveries of one consumer are handled. The same object serves all threads."""

    def __init__(self, alias: str, consumer: Consumer):
        self.alias, self.consumer = alias, consumer
        self._timeout = consumer.manners.visibility_timeout

    # -- starting -----------------------------------------------------------------------------------------------------

    def started(self, hands: Sequence[Hand]) -> bool:
        """Note that these begin now; False if the lease may have ended by this process's own clock: then nothing
        begins."""
        moment = now()
        stream = hands[0].stream
        if stream.lost or moment >= stream.deadline:
            return False
        for hand in hands:
            hand.deadline = moment + self._timeout  # first: whoever sees that it has started looks at its deadline
            hand.started = moment
        return True

    # -- in a thread --------------------------------------------------------------------------------------------------

    def run(self, run: Run, report: Report) -> None:
        """Run the hands of a run, one after another or as one batch; report what became of each of them."""
        care_for_connections()
        if run.batch:
            self._run_batch(run, report)
        else:
            while (hand := run.start_next()) is not None:
                if not self._go_on(run, hand, self._handle(run, hand), report):
                    break
                care_for_connections()
        care_for_connections(failed=run.stopped)

    def _go_on(self, run: Run, hand: Hand, outcome: Outcome, report: Report) -> bool:
        """Report; a hand that was not acked ends its run: what stands behind it must wait for it."""
        hand.finished = now()
        if outcome.kind == outcomes.ACKED:
            report(hand, outcome)
            return True
        behind = run.stop()
        for later in behind:
            report(later, UNSTARTED)
        report(hand, outcome)
        return False

    def _handle(self, run: Run, hand: Hand) -> Outcome:
        if not self.started([hand]):
            return UNSTARTED
        delivery = Delivery(hand)
        try:
            with InHand(delivery):
                if self.consumer.manners.atomic:
                    return self._in_transaction(run, [hand], lambda: self.consumer.handler(delivery))
                self.consumer.handler(delivery)
        except BaseException as error:
            return self._decide(error, hand, [hand])
        return SUCCESS

    def _decide(self, error: BaseException, hand: Hand, together: Sequence[Hand]) -> Outcome:
        """Return what an error makes of a hand. A LeaseLost counts as the engine's only if one of the hands that were
        handled together is lost indeed; else it is about something of the handler's own, and a failure."""
        if isinstance(error, LeaseLost) and any(each.stream.lost or each.outcome is not None for each in together):
            return SUPERSEDED
        return outcomes.decide(error, hand.attempt, self.consumer.manners.max_attempts, self.consumer.backoff)

    def _begin_batch(self, run: Run, report: Report) -> list[Hand]:
        """Return all hands of a batch, started; none if it was stopped, or its lease may have ended."""
        hands = list(iter(run.start_next, None))
        if hands and not self.started(hands):
            for hand in hands:
                report(hand, UNSTARTED)
            return []
        return hands

    def _run_batch(self, run: Run, report: Report) -> None:
        hands = self._begin_batch(run, report)
        if not hands:
            return
        deliveries = [Delivery(hand) for hand in hands]
        error: BaseException | None = None
        outcome = SUCCESS
        try:
            with InHand(*deliveries):
                if self.consumer.manners.atomic:
                    outcome = self._in_transaction(run, hands, lambda: self.consumer.handler(deliveries))
                else:
                    self.consumer.handler(deliveries)
        except BaseException as raised:
            error = raised
        self.report_batch(hands, outcome, error, report)

    def report_batch(
        self, hands: Sequence[Hand], outcome: Outcome, error: BaseException | None, report: Report
    ) -> None:
        """A batch has one outcome; what it raised counts for each of its messages, which then come back one by one."""
        moment = now()
        for hand in hands:
            hand.finished = moment
            report(hand, self._decide(error, hand, hands) if error is not None else outcome)

    # -- atomic -------------------------------------------------------------------------------------------------------

    def _in_transaction(self, run: Run, hands: list[Hand], handle: Callable[[], Any]) -> Outcome:
        """Run a handler and its ack in one transaction. Every error rolls both back."""
        for attempt in range(1, ATOMIC_TRIES + 1):
            committed: list[bool] = []
            begun = handled = settled = False
            try:
                with dialect(self.alias).writers, transaction.atomic(using=self.alias):
                    begin(self.alias)
                    begun = True
                    # Opening it may have taken its time: SQLite has one writer, and a server may be slow to answer.
                    if not self.started(hands):
                        return UNSTARTED
                    transaction.on_commit(lambda: committed.append(True), using=self.alias)  # noqa: B023  run by this turn
                    handle()
                    handled = True
                    moved_to = settle_run(self.alias, run, hands)
                    settled = True
            except Settlement:
                raise
            except Exception as error:
                if committed:
                    logger.error(line("commit_hook_failed", **self._facts(hands), error=error), exc_info=error)
                    return self._committed(moved_to)
                if handled and isinstance(error, LeaseLost):
                    return SUPERSEDED
                fault = faults.classify(error) if isinstance(error, Error) else Fault.OTHER
                if fault is Fault.GONE and settled:
                    return self._after_lost_reply(run, hands, error)
                if fault is Fault.CONTENTION and attempt < ATOMIC_TRIES:
                    logger.info(line("handler_rerun", **self._facts(hands), error=error))
                    time.sleep(0.01 * attempt)
                    continue
                if fault in (Fault.GONE, Fault.CONTENTION) and not begun:
                    return self._not_begun(hands, error)
                raise
            return self._committed(moved_to)
        raise AssertionError("unreachable")

    def _not_begun(self, hands: list[Hand], error: Exception) -> Outcome:
        """The transaction could not be opened (this thread's connection had been lost while nobody looked): no attempt
        is charged, for the handler has seen nothing of it."""
        logger.info(line("transaction_not_begun", **self._facts(hands), error=error))
        faults.drop_connection(self.alias)
        time.sleep(NOT_BEGUN_PAUSE)
        return UNSTARTED

    def _facts(self, hands: Sequence[Hand]) -> dict[str, Any]:
        address = hands[0].stream.address
        place = {"group": address.group, "topic": address.topic, "partition": address.partition}
        return {"handler": self.consumer.name, **place, "offset": hands[0].offset, "count": len(hands)}

    def _committed(self, moved_to: int | None) -> Outcome:
        return COMMITTED if moved_to is None else Outcome(outcomes.ACKED, committed=True, moved_to=moved_to)

    def _after_lost_reply(self, run: Run, hands: list[Hand], error: Exception) -> Outcome:
        """The commit got no reply: ask until the database tells whether it came through, or the lease is over."""
        logger.warning(line("commit_in_doubt", **self._facts(hands), error=error))
        faults.drop_connection(self.alias)
        stream = run.stream
        try:
            known = faults.patiently(
                self.alias, faults.run, self.alias, was_committed, self.alias, run, hands, give_up=lambda: stream.lost
            )
        except LeaseLost:
            return SUPERSEDED
        if known is None:
            return SUPERSEDED
        position, acked = known
        if not acked:
            raise error
        return self._committed(position)

    # -- on the event loop --------------------------------------------------------------------------------------------

    async def run_async(self, run: Run, report: Report) -> None:
        """The same for `async def` handlers."""
        if run.batch:
            await self._run_batch_async(run, report)
            return
        while (hand := run.start_next()) is not None:
            if not self._go_on(run, hand, await self._handle_async(hand), report):
                break

    async def _handle_async(self, hand: Hand) -> Outcome:
        if not self.started([hand]):
            return UNSTARTED
        delivery = Delivery(hand)
        try:
            with InHand(delivery):
                await self.consumer.handler(delivery)
        except BaseException as error:
            return self._decide(error, hand, [hand])
        return SUCCESS

    async def _run_batch_async(self, run: Run, report: Report) -> None:
        hands = self._begin_batch(run, report)
        if not hands:
            return
        deliveries = [Delivery(hand) for hand in hands]
        error: BaseException | None = None
        try:
            with InHand(*deliveries):
                await self.consumer.handler(deliveries)
        except BaseException as raised:
            error = raised
        self.report_batch(hands, SUCCESS, error, report)
