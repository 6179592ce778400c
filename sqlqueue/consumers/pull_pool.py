"""The pool of a pull loop: deliveries are handled by the receiver's thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import SimpleQueue

from sqlqueue.consumers.executor import HandlerExecutor, Report
from sqlqueue.consumers.pools import Pool
from sqlqueue.consumers.pulled_delivery import PulledDelivery
from sqlqueue.consumers.registry import Consumer
from sqlqueue.core import outcomes
from sqlqueue.core.outcomes import EXPIRED, UNSTARTED, Outcome
from sqlqueue.core.settle_plan import Attempt, Execution


class PullPool(Pool):
    """Gives the deliveries of executions to the receiver, one at a time and in their order. `arrived` is called, by any
    thread, when there is another one."""

    def __init__(
        self,
        alias: str,
        consumer: Consumer,
        report: Report,
        ended: Callable[[Execution], None],
        arrived: Callable[[], None],
        deliveries: SimpleQueue[PulledDelivery | None],
    ):
        self.alias, self.consumer, self._report, self._ended, self._arrived = alias, consumer, report, ended, arrived
        self.deliveries = deliveries
        self._executor: HandlerExecutor | None = None

    def submit(self, executor: HandlerExecutor, execution: Execution, reserved: bool = False) -> None:
        """Offer the first delivery of an execution; the next one follows when that is acked."""
        self._executor = executor
        self._offer(execution)

    def _offer(self, execution: Execution) -> None:
        attempt = execution.start_next()
        if attempt is None:
            self._ended(execution)
        else:
            pulled = PulledDelivery(self.alias, self.consumer, execution, attempt, self.settle, self.begin)
            self.deliveries.put(pulled)
            self._arrived()

    def begin(self, delivery: PulledDelivery) -> bool:
        """Start a delivery's visibility timeout; return False if the lease is over, or the message has expired: then it
        is not delivered."""
        assert self._executor is not None
        attempt = delivery._attempt
        started = self._executor.started([attempt])
        if started and not attempt.expired:
            return True
        self.settle(delivery._execution, attempt, EXPIRED if started else UNSTARTED)
        return False

    def settle(self, execution: Execution, attempt: Attempt, outcome: Outcome) -> None:
        """Report an outcome, and offer the deliveries behind it, or release them."""
        attempt.finished = time.monotonic()
        if outcome.kind == outcomes.ACKED or outcome is EXPIRED:
            self._report(attempt, outcome)
            self._offer(execution)
            return
        for later in execution.stop():
            self._report(later, UNSTARTED)
        self._report(attempt, outcome)
        self._ended(execution)

    def abandon(self, execution: Execution) -> None:
        """End an execution that has overrun; its receiver gets LeaseLost when settling it."""
        self._ended(execution)

    def close(self) -> None:
        """Wake a receiver that waits for a delivery."""
        self.deliveries.put(None)
