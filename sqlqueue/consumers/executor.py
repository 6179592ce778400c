"""The handler executor: runs the handler of an execution's attempts and reports their outcomes."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from asgiref.sync import sync_to_async
from django.db import Error, InternalError
from django.db.transaction import TransactionManagementError

from sqlqueue.consumers.atomic_executor import AtomicExecutor
from sqlqueue.consumers.batch_run import BatchRun
from sqlqueue.consumers.connections import care_for_connections, undisturbed
from sqlqueue.consumers.delivery import Delivery
from sqlqueue.consumers.group_run import GroupRun
from sqlqueue.consumers.registry import Consumer
from sqlqueue.consumers.trouble import Trouble
from sqlqueue.core import forks, outcomes
from sqlqueue.core.effects import effect_of
from sqlqueue.core.not_run import check_has_run
from sqlqueue.core.outcomes import EXPIRED, SUCCESS, SUPERSEDED, UNSTARTED, Outcome
from sqlqueue.core.retry_policy import ALL, RetryFilter
from sqlqueue.core.settle_plan import Attempt, Execution
from sqlqueue.database import retries
from sqlqueue.database.log import Log
from sqlqueue.database.retries import ErrorKind
from sqlqueue.exceptions import InvalidResult, LeaseLost
from sqlqueue.log.results import asking, outcome_of
from sqlqueue.tracing.delivery_context import DeliveryContext

now = time.monotonic

Report = Callable[[Attempt, Outcome], None]
T = TypeVar("T")

# A transaction in which a statement had failed refuses all others: Django's error, and PostgreSQL's.
REFUSED = (TransactionManagementError, InternalError)


def go_on(execution: Execution, attempt: Attempt, outcome: Outcome, report: Report) -> bool:
    """Report the outcome of an attempt; return whether its execution goes on. An attempt that failed ends it: the
    attempts behind it have to wait."""
    attempt.finished = now()
    if outcome.kind == outcomes.ACKED or outcome is EXPIRED:
        report(attempt, outcome)
        return True
    for later in execution.stop():
        report(later, UNSTARTED)
    report(attempt, outcome)
    return False


class HandlerExecutor:
    """Runs the executions of one consumer. All threads share one object."""

    def __init__(self, log: Log, consumer: Consumer):
        self.log, self.consumer = log, consumer
        self._timeout = consumer.options.visibility_timeout
        self._keeps = consumer.options.keep_results is not None
        self._transaction = AtomicExecutor(log, consumer.name, consumer.options.keep_results, consumer.options.grouped)
        self.divides = True  # a batch that fails, to find the messages that make it fail

    @property
    def trouble(self) -> Trouble:
        """What goes wrong in the transactions of its atomic handler, other than by the handler."""
        return self._transaction.trouble

    def stop_without_tables(self, stop: Callable[[Error], None]) -> None:
        """Let a table or a column that the engine misses in its atomic handler's transactions call this."""
        self._transaction.schema_differs = stop

    @property
    def ends(self) -> bool:
        """Whether nothing more is to be handled."""
        return False

    # -- starting -----------------------------------------------------------------------------------------------------

    def started(self, attempts: Sequence[Attempt]) -> bool:
        """Record that these attempts start now. Return False if the lease, or a claim ahead, may have expired by this
        process's clock: then none starts."""
        moment = now()
        lease = attempts[0].lease
        if lease.lost or moment >= lease.deadline:
            return False
        for attempt in attempts:
            if moment >= attempt.claimed_until:
                return False
        for attempt in attempts:
            attempt.claimed_until = math.inf  # it may be called again, as one of fewer
            attempt.deadline = (
                moment + self._timeout
            )  # first: the control thread reads the deadline of what has started
            attempt.started = moment
            attempt.reply = None  # of a call before, whose writes were rolled back
        return True

    # -- in a thread --------------------------------------------------------------------------------------------------

    def run(self, execution: Execution, report: Report) -> None:
        """Run the attempts of an execution, one after another or as one batch; report the outcome of each."""
        care_for_connections()
        if self.consumer.options.grouped:
            GroupRun(
                self.log,
                self.consumer,
                execution,
                report,
                self.started,
                self._decide,
                self._transaction,
                lambda: self.ends,
            ).run()
        elif execution.batch:
            self._run_batch(execution, report)
        else:
            while (attempt := execution.start_next()) is not None:
                if not go_on(execution, attempt, self._handle(execution, attempt), report):
                    break
                care_for_connections(attempt.finished)

    def not_begun(self, attempt: Attempt) -> Outcome | None:
        """Let an attempt start now; return its outcome if that is not to be: its lease is over, or it has expired."""
        if not self.started([attempt]):
            return UNSTARTED
        return EXPIRED if attempt.expired else None

    def _handle(self, execution: Execution, attempt: Attempt) -> Outcome:
        if (outcome := self.not_begun(attempt)) is not None:
            return outcome
        delivery = Delivery(attempt, self.consumer.payloads)
        try:
            with DeliveryContext(delivery):
                return self._call(execution, [attempt], delivery)
        except BaseException as error:
            return self._decide(error, attempt, [attempt])

    def _call(self, execution: Execution, attempts: list[Attempt], given: Any) -> Outcome:
        if self.consumer.options.atomic:
            return self._transaction.run(
                execution, attempts, functools.partial(self.consumer.handler, given), self.started
            )
        returned = undisturbed(self.consumer.handler, given)
        check_has_run(returned, self.consumer.name)
        if execution.batch or not (self._keeps or asking(attempts)):
            return SUCCESS
        return self._ask(attempts, outcome_of, self.log, attempts[0], returned, self._keeps)

    def _ask(self, together: Sequence[Attempt], operation: Callable[..., T], *args: Any) -> T:
        """Call, once a handler has ended, what may ask the server what it can keep. An error of the database is the
        engine's own, and no attempt's: it is called again until it succeeds, and the attempts that have run together
        overrun only if one call takes as long as a handler may. Raises LeaseLost once the lease is lost."""

        @functools.wraps(operation)
        def once() -> T:
            for attempt in together:
                attempt.deadline = now() + self._timeout
            return operation(*args)

        if self.log.connection.in_atomic_block:  # of a test, which alone can roll back
            return once()
        found = retries.patiently(self.log, once, give_up=lambda: together[0].lease.lost)
        if found is None:
            raise LeaseLost
        return found

    def _decide(self, error: BaseException, attempt: Attempt, together: Sequence[Attempt]) -> Outcome:
        """Return the outcome of an attempt that raised. LeaseLost supersedes it only if one of the attempts that ran
        together has lost its lease or has an outcome; otherwise the handler raised it for a reason of its own, and it
        is a failure."""
        if isinstance(error, LeaseLost) and any(each.lease.lost or each.outcome is not None for each in together):
            return SUPERSEDED
        retried = self._retried(error, together)
        if effect_of(error) is None:
            return self.consumer.decide(error, attempt.number, retried)
        try:
            return self._ask(together, self.consumer.decide, error, attempt.number, retried)
        except LeaseLost:
            return SUPERSEDED

    def _retried(self, error: BaseException, together: Sequence[Attempt]) -> RetryFilter:
        """Return which errors are retried.

        Any message of a batch may have caused the batch's error, so each is delivered alone first. A lost connection or
        a deadlock in an atomic handler's transaction may be the ack's own. So may the refusal of a transaction in which
        a statement had failed, and that statement's error is not known any more.
        """
        if len(together) > 1:
            return ALL
        retried = self.consumer.retried
        if not self.consumer.options.atomic or not isinstance(error, Error):
            return retried
        transient = retries.classify(error) in (ErrorKind.GONE, ErrorKind.CONTENTION)
        return replace(retried, retry_for=None) if transient or isinstance(error, REFUSED) else retried

    def _batch_run(self, execution: Execution, report: Report) -> BatchRun:
        return BatchRun(self.consumer, execution, report, self.started, self._decide, self.divides)

    def _run_batch(self, execution: Execution, report: Report) -> None:
        run = self._batch_run(execution, report)
        while deliveries := run.next():
            error: BaseException | None = None
            outcome = SUCCESS
            try:
                with DeliveryContext(*deliveries):
                    outcome = self._call(execution, run.attempts, deliveries)
            except BaseException as raised:
                error = raised
            asked = asking(run.attempts) if outcome is SUCCESS and error is None else []
            run.ended(outcome, error, self._replied(asked, run.attempts))
            care_for_connections()

    def _replied(self, asked: Sequence[Attempt], together: Sequence[Attempt]) -> dict[Attempt, Outcome]:
        """Return the outcomes of messages of a batch whose publishers wait for a reply. One whose reply cannot be
        stored is a dead letter, without its neighbours."""
        found: dict[Attempt, Outcome] = {}
        for attempt in asked:
            try:
                found[attempt] = self._ask(together, outcome_of, self.log, attempt, None, self._keeps)
            except (InvalidResult, LeaseLost) as error:
                found[attempt] = self._decide(error, attempt, [attempt])
        return found

    # -- on the event loop --------------------------------------------------------------------------------------------

    async def run_async(self, execution: Execution, report: Report) -> None:
        """Run the attempts of an execution of an `async def` handler."""
        if execution.batch:
            await self._run_batch_async(execution, report)
            return
        while (attempt := execution.start_next()) is not None:
            if not go_on(execution, attempt, await self._handle_async(attempt), report):
                break

    async def _await(self, attempts: Sequence[Attempt], given: Any) -> Any:
        process = forks.generation
        try:
            returned = await self.consumer.handler(given)
        finally:
            forks.leave_if_forked(process)
        check_has_run(returned, self.consumer.name)
        return returned

    async def _handle_async(self, attempt: Attempt) -> Outcome:
        if (outcome := self.not_begun(attempt)) is not None:
            return outcome
        delivery = Delivery(attempt, self.consumer.payloads)
        try:
            with DeliveryContext(delivery):
                returned = await self._await([attempt], delivery)
            if self._keeps or asking([attempt]):
                # In the thread of the handlers' database calls: the server may have to be asked what it can keep.
                return await sync_to_async(self._ask)([attempt], outcome_of, self.log, attempt, returned, self._keeps)
            return SUCCESS
        except BaseException as error:
            if effect_of(error) is not None:  # likewise
                return await sync_to_async(self._decide)(error, attempt, [attempt])
            return self._decide(error, attempt, [attempt])

    async def _run_batch_async(self, execution: Execution, report: Report) -> None:
        run = self._batch_run(execution, report)
        while deliveries := run.next():
            error: BaseException | None = None
            try:
                with DeliveryContext(*deliveries):
                    await self._await(run.attempts, deliveries)
            except BaseException as raised:
                error = raised
            asked = asking(run.attempts) if error is None else []
            replied = await sync_to_async(self._replied)(asked, run.attempts) if asked else {}
            if error is not None and len(run.attempts) == 1 and effect_of(error) is not None:
                await sync_to_async(run.ended)(SUCCESS, error, replied)
            else:
                run.ended(SUCCESS, error, replied)
