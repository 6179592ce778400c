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

from sqlqueue.consumers.declare.registry import Consumer
from sqlqueue.consumers.handlers.atomic import AtomicExecutor
from sqlqueue.consumers.handlers.connections import guarded
from sqlqueue.consumers.handlers.delivery import Delivery
from sqlqueue.consumers.handlers.runs import ChunkRun, Report, Run, SingleRun, TransactionRun
from sqlqueue.core import forks
from sqlqueue.core.effects import effect_of
from sqlqueue.core.not_run import check_has_run
from sqlqueue.core.outcomes import SUPERSEDED, Outcome
from sqlqueue.core.retry_policy import ALL, RetryFilter
from sqlqueue.core.settle_plan import Attempt, Execution
from sqlqueue.database import retries
from sqlqueue.database.log import Log
from sqlqueue.database.retries import ErrorKind
from sqlqueue.exceptions import LeaseLost
from sqlqueue.tracing.delivery_context import DeliveryContext, in_context

now = time.monotonic

T = TypeVar("T")

# A transaction in which a statement had failed refuses all others: Django's error, and PostgreSQL's.
REFUSED = (TransactionManagementError, InternalError)


class HandlerExecutor:
    """Runs the executions of one consumer. All threads share one object. transaction: what runs atomic handlers;
    keeps: what the handler returns is stored; divides: a chunk that fails, to find the messages that make it fail;
    ends: nothing more is to be handled."""

    divides = True
    ends = False

    def __init__(self, log: Log, consumer: Consumer):
        self.log, self.consumer = log, consumer
        self.keeps = consumer.options.keep_results is not None
        self.transaction = AtomicExecutor(log, consumer) if consumer.options.atomic else None
        self._timeout = consumer.options.visibility_timeout
        self._guarded: Callable[[Callable[[Any], Any], Any], Any] = guarded

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

    # -- runs ---------------------------------------------------------------------------------------------------------

    def run(self, execution: Execution, report: Report) -> None:
        """Run the attempts of an execution in this thread, one after another or as chunks; report the outcome of
        each."""
        if self.transaction is not None and not self.consumer.options.batch:
            TransactionRun(self, execution, report).run()
            return
        run: Run = (ChunkRun if execution.batch else SingleRun)(self, execution, report)
        while (given := run.next()) is not None:
            returned = error = None
            try:
                returned = self._call(run, given if execution.batch else (given,), given)
            except BaseException as raised:
                error = raised
            run.ended(returned, error)

    async def run_async(self, execution: Execution, report: Report) -> None:
        """Run the attempts of an execution of an `async def` handler."""
        run: Run = (ChunkRun if execution.batch else SingleRun)(self, execution, report)
        while (given := run.next()) is not None:
            returned = error = None
            try:
                with DeliveryContext(*(given if execution.batch else (given,))):
                    returned = await self._await(given)
            except BaseException as raised:
                error = raised
            if run.asks(error):  # in the thread of the handlers' database calls
                await sync_to_async(run.ended)(returned, error)
            else:
                run.ended(returned, error)

    def _call(self, run: Run, deliveries: Sequence[Delivery[Any]], given: Any) -> Any:
        if self.transaction is not None:
            return in_context(deliveries, self.transaction.run, run.execution, run.attempts, given, self.started)
        returned = in_context(deliveries, self._guarded, self.consumer.handler, given)
        if returned is not None:
            check_has_run(returned, self.consumer.name)
        return returned

    async def _await(self, given: Any) -> Any:
        forked = forks.generation
        try:
            returned = await self.consumer.handler(given)
        finally:
            forks.leave_if_forked(forked)
        check_has_run(returned, self.consumer.name)
        return returned

    # -- what came of it ----------------------------------------------------------------------------------------------

    def ask(self, together: Sequence[Attempt], operation: Callable[..., T], *args: Any) -> T:
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

    def decide(self, error: BaseException, attempt: Attempt, together: Sequence[Attempt]) -> Outcome:
        """Return the outcome of an attempt that raised. LeaseLost supersedes it only if one of the attempts that ran
        together has lost its lease or has an outcome; otherwise the handler raised it for a reason of its own, and it
        is a failure."""
        if isinstance(error, LeaseLost) and any(each.lease.lost or each.outcome is not None for each in together):
            return SUPERSEDED
        retried = self._retried(error, together)
        if effect_of(error) is None:
            return self.consumer.decide(error, attempt.number, retried)
        try:
            return self.ask(together, self.consumer.decide, error, attempt.number, retried)
        except LeaseLost:
            return SUPERSEDED

    def _retried(self, error: BaseException, together: Sequence[Attempt]) -> RetryFilter:
        """Return which errors are retried.

        Any message of a chunk may have caused the chunk's error, so each is delivered alone first. A lost connection or
        a deadlock in an atomic handler's transaction may be the ack's own. So may the refusal of a transaction in which
        a statement had failed, and that statement's error is not known any more.
        """
        if len(together) > 1:
            return ALL
        retried = self.consumer.retried
        if self.transaction is None or not isinstance(error, Error):
            return retried
        transient = retries.classify(error) in (ErrorKind.GONE, ErrorKind.CONTENTION)
        return replace(retried, retry_for=None) if transient or isinstance(error, REFUSED) else retried
