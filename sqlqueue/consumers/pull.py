"""subscribe(): the same engine as a pull loop, for scripts, shells and tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any

from django.db import connections, transaction

from sqlqueue.conf import settings
from sqlqueue.consumers.connections import CONNECTIONS_LAST
from sqlqueue.consumers.delivery import Delivery
from sqlqueue.consumers.handling import Handling, Report
from sqlqueue.consumers.pool import Pool
from sqlqueue.consumers.registry import Consumer, build
from sqlqueue.consumers.subscriber import Subscriber
from sqlqueue.core import outcomes
from sqlqueue.core.outcomes import SUPERSEDED, UNSTARTED, Outcome
from sqlqueue.core.plan import Hand, Run
from sqlqueue.database import faults
from sqlqueue.exceptions import ConfigurationError, LeaseLost, Postpone, Reject, Retry, seconds
from sqlqueue.log.atomic import settle_run

LOOK_AGAIN = 0.2  # seconds between two looks at whether the engine still lives


class PulledDelivery(Delivery):
    """A delivery that its receiver settles: by one of ack, retry, postpone and reject. To call that again does nothing;
    another one is refused."""

    def __init__(self, pulled: _PullPool, run: Run, hand: Hand):
        super().__init__(hand)
        self._pulled, self._run = pulled, run
        self._settled = ""  # by which of its methods
        self._commits: _Commits | None = None  # what is told of the transaction that it was acked in

    @property
    def settled(self) -> str:
        """By which of its methods it has been settled; "" if by none, or in a transaction that was rolled back."""
        if self._commits is not None and self._commits.rolled_back:
            self._settled, self._commits = "", None
        return self._settled

    def ack(self) -> None:
        """Done: never deliver it to this group again. In a transaction of the queue's database it is part of that: it
        commits with it, or not at all.

        Raises ConfigurationError in a transaction of another database: its rollback could not take the ack back.
        """
        alias = self._pulled.alias
        held = [one.alias for one in connections.all(initialized_only=True) if one.in_atomic_block]
        if alias in held:
            self._ack_in_transaction(alias)
        elif held:
            raise ConfigurationError(
                f"{self!r} is acked in a transaction of {held[0]!r}, and would stay so if that is rolled back: ack it "
                "once that has committed"
            )
        else:
            self._settle("ack", outcomes.SUCCESS)

    def _ack_in_transaction(self, alias: str) -> None:
        if self._is_settled("ack"):
            return
        moved_to = settle_run(alias, self._run, [self._hand])
        self._settled = "ack"
        self._commits = _Commits(
            alias, lambda: self._pulled.settle(self._run, self._hand, outcomes.committed_at(moved_to))
        )

    @property
    def uncommitted(self) -> bool:
        """It was acked in a transaction that is still open."""
        return self._commits is not None and self._commits.open

    def retry(self, delay: float | timedelta | None = None, reason: str = "") -> None:
        """Deliver again after `delay` seconds, or the backoff; the attempt counts. A dead letter at the last one."""
        self._decide("retry", Retry(reason, delay=delay))

    def postpone(self, delay: float | timedelta, reason: str = "") -> None:
        """Deliver again after `delay` seconds; no attempt is charged."""
        self._decide("postpone", Postpone(reason, delay=delay))

    def reject(self, reason: str) -> None:
        """Straight to the dead letters."""
        self._decide("reject", Reject(reason))

    def _decide(self, how: str, said: Exception) -> None:
        consumer = self._pulled.consumer
        self._settle(how, outcomes.decide(said, self.attempt, consumer.manners.max_attempts, consumer.backoff))

    def _settle(self, how: str, outcome: Outcome) -> None:
        if not self._is_settled(how):
            self._settled = how
            self._pulled.settle(self._run, self._hand, outcome)

    def _is_settled(self, how: str) -> bool:
        """Tell whether it has been settled in this way; refuse another one, and what is not the receiver's any more."""
        if self.settled == how:
            return True
        if self.settled:
            raise ConfigurationError(f"{self!r} has been settled already, by {self.settled}()")
        try:
            self.check_lease()
        except LeaseLost:
            self._pulled.settle(self._run, self._hand, SUPERSEDED)  # it is no more in the receiver's hands
            raise
        return False


class _Commits:
    """Learns what becomes of the transaction, or of the savepoint, that is open now on this thread's connection."""

    def __init__(self, alias: str, then: Callable[[], None]):
        self._connection, self._then, self._committed = connections[alias], then, False
        transaction.on_commit(self, using=alias)

    def __call__(self) -> None:
        self._committed = True
        self._then()

    @property
    def open(self) -> bool:
        """It may still be rolled back. Django forgets the hooks of what was."""
        return any(hook[1] is self for hook in self._connection.run_on_commit)

    @property
    def rolled_back(self) -> bool:
        """It is over, and has not been committed."""
        return not self._committed and not self.open


class _PullPool(Pool):
    """Hands runs to whoever iterates, one delivery at a time and in their order."""

    def __init__(self, alias: str, consumer: Consumer, report: Report, ended: Callable[[Run], None]):
        self.alias, self.consumer, self._report, self._ended = alias, consumer, report, ended
        self.deliveries: SimpleQueue[PulledDelivery | None] = SimpleQueue()
        self._handling: Handling | None = None

    def submit(self, handling: Handling, run: Run) -> None:
        """Offer the run's first delivery; the next one follows when that is acked."""
        self._handling = handling
        self._offer(run)

    def _offer(self, run: Run) -> None:
        hand = run.start_next()
        if hand is None:
            self._ended(run)
        else:
            self.deliveries.put(PulledDelivery(self, run, hand))

    def begin(self, delivery: PulledDelivery) -> bool:
        """Start a delivery's visibility timeout; False if the lease is over: then it is not delivered."""
        assert self._handling is not None
        if self._handling.started([delivery._hand]):
            return True
        self.settle(delivery._run, delivery._hand, UNSTARTED)
        return False

    def settle(self, run: Run, hand: Hand, outcome: Outcome) -> None:
        """Report an outcome, and offer what stands behind it, or hand that back."""
        hand.finished = time.monotonic()
        if outcome.kind == outcomes.ACKED:
            self._report(hand, outcome)
            self._offer(run)
            return
        for later in run.stop():
            self._report(later, UNSTARTED)
        self._report(hand, outcome)
        self._ended(run)

    def abandon(self, run: Run) -> None:
        """Whoever has it will see LeaseLost when settling it."""
        self._ended(run)

    def close(self) -> None:
        """Wake whoever waits for a delivery."""
        self.deliveries.put(None)


class _Engine:
    """A subscriber that runs in a thread of its own; what ends it badly is raised in the receiver's."""

    def __init__(self, subscriber: Subscriber):
        self._subscriber = subscriber
        self._error: BaseException | None = None
        self._started = threading.Event()
        self.thread = threading.Thread(target=self._run, name="sqlqueue-subscribe", daemon=True)
        self.thread.start()
        self._started.wait()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._subscriber.run(started=self._started.set)
        except BaseException as error:  # it is raised in the receiver's thread
            self._error = error
        finally:
            self._started.set()

    def stop(self) -> None:
        """Ask for its end, which does not wait for what the receiver has not settled."""
        self._subscriber.stop_soon(timeout=0.0)

    @property
    def ended(self) -> bool:
        """It runs no more."""
        return not self.thread.is_alive()

    def join(self) -> None:
        """Wait for the engine's end, and raise what has ended it."""
        self.thread.join()
        if self._error is not None:
            raise self._error


class Deliveries:
    """Iterate over it. It ends after `timeout` seconds without a delivery (None: never), by close(), or by leaving its
    block.

    What has ended the engine is raised here.
    """

    def __init__(self, pool: _PullPool, engine: _Engine, timeout: float | None):
        self._pool, self._engine, self._timeout = pool, engine, timeout

    def close(self) -> None:
        """End the iteration, from whichever thread or signal handler; what is unsettled is handed back, uncharged."""
        self._engine.stop()

    def __iter__(self) -> Iterator[PulledDelivery]:
        waited_since = looked_at = time.monotonic()
        delivery: PulledDelivery | None = None
        while True:
            if delivery is not None and delivery.uncommitted:
                raise ConfigurationError(
                    f"{delivery!r} was acked in a transaction that is still open, for which the group's other messages "
                    "wait: commit it before the next delivery is waited for"
                )
            try:
                delivery = self._pool.deliveries.get(timeout=LOOK_AGAIN)
            except Empty:
                if self._timeout is not None and time.monotonic() - waited_since >= self._timeout:
                    return
                if not self._engine.ended:
                    continue
                delivery = None
            if delivery is None:
                self._engine.join()
                return
            if time.monotonic() - looked_at >= CONNECTIONS_LAST:
                faults.close_lost_connections()  # the receiver's own, before its visibility timeout begins
                looked_at = time.monotonic()
            if self._pool.begin(delivery):
                yield delivery
            waited_since = time.monotonic()


@contextmanager
def subscribe(
    topic: str, *, group: str = "default", timeout: float | None = None, **options: Any
) -> Iterator[Deliveries]:
    """Receive a topic's messages for a group in the calling thread; options as for @consumer, but batch and atomic.

    The engine runs in a thread of its own (leases, heartbeats, settles). Each delivery is settled by the receiver: ack,
    retry, postpone or reject; what is not settled on leaving is handed back, uncharged. timeout: seconds without a
    delivery after which the iteration ends. Up to batch_size deliveries (more while they are settled fast) may be
    unsettled at once: then the iteration waits for the receiver to settle some. Inside a TestCase the engine's thread
    cannot see the test's transaction: use sqlqueue.testing.drain there, or a TransactionTestCase.
    """
    for name in ("batch", "atomic"):
        if options.get(name):
            raise ConfigurationError(f"subscribe() delivers one by one, not {name}: use @consumer for that")
    if timeout is not None:
        timeout = seconds(timeout, "timeout")
    made = build(topic, {"group": group, **options})
    consumer = Consumer(topic=topic, handler=_nobody, **made)
    pools: list[_PullPool] = []

    def make_pool(report: Report, ended: Callable[[Run], None]) -> _PullPool:
        pools.append(_PullPool(settings.DATABASE, consumer, report, ended))
        return pools[0]

    # A process's throttle lets twice its threads in; here that is what may be unsettled with the receiver at once.
    subscriber = Subscriber([consumer], threads=max(1, consumer.manners.batch_size // 2), pool=make_pool)
    engine = _Engine(subscriber)
    try:
        yield Deliveries(pools[0], engine, timeout)
    finally:
        subscriber.stop(timeout=0.0)
        engine.thread.join()


def _nobody(delivery: Delivery) -> None:
    raise LeaseLost("a pulled delivery has no handler")
