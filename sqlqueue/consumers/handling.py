"""Running handlers: what happens between a run's start and its outcomes."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

from sqlqueue.consumers.connections import Undisturbed, care_for_connections
from sqlqueue.consumers.delivery import Delivery
from sqlqueue.consumers.in_transaction import InTransaction
from sqlqueue.consumers.registry import Consumer
from sqlqueue.core import outcomes
from sqlqueue.core.outcomes import SUCCESS, SUPERSEDED, UNSTARTED, Outcome
from sqlqueue.core.plan import Hand, Run
from sqlqueue.exceptions import LeaseLost
from sqlqueue.observe.in_hand import InHand

now = time.monotonic

Report = Callable[[Hand, Outcome], None]


class Handling:
    """How the deliveries of one consumer are handled. The same object serves all threads."""

    def __init__(self, alias: str, consumer: Consumer):
        self.alias, self.consumer = alias, consumer
        self._timeout = consumer.manners.visibility_timeout
        self._transaction = InTransaction(alias, consumer.name)

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
                return self._call(run, [hand], delivery)
        except BaseException as error:
            return self._decide(error, hand, [hand])

    def _call(self, run: Run, hands: list[Hand], given: Any) -> Outcome:
        if self.consumer.manners.atomic:
            return self._transaction.run(run, hands, functools.partial(self.consumer.handler, given), self.started)
        with Undisturbed():
            self.consumer.handler(given)
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
                outcome = self._call(run, hands, deliveries)
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
