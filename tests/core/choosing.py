"""The dispatcher's own choice, for the model of the engine: no thread runs, and no database is asked."""

from __future__ import annotations

import threading
from typing import Any

from sqlqueue.consumers.declare.registry import Consumer
from sqlqueue.consumers.engine.dispatcher import Dispatcher
from sqlqueue.consumers.engine.in_flight import InFlight
from sqlqueue.consumers.engine.ownership import Ownership
from sqlqueue.consumers.engine.reader import Reader
from sqlqueue.consumers.engine.settler import Settler
from sqlqueue.consumers.engine.subscription import Subscription
from sqlqueue.consumers.engine.throttle import Throttle
from sqlqueue.core.flow import Rate
from sqlqueue.core.partition.assigned import AssignedPartition
from sqlqueue.core.partition.key_limit import KeyRate
from sqlqueue.core.partition.ref import ConsumerOptions
from sqlqueue.core.retry_policy import Backoff
from sqlqueue.core.settle_plan import Attempt, Execution
from tests.logs import LOG

THREADS = 2


class Allowance(Throttle):
    """A throttle whose room is given, however much is in flight."""

    most = 0

    def room(self, outstanding: int, runs: int) -> int:
        return self.most


class Choice:
    """What the dispatcher of one process that serves one group chooses, and what it counts as in flight."""

    def __init__(self, group: str, manners: ConsumerOptions, reader: Reader, rate_of_keys: Rate | None = None):
        consumer = self.consumer = Consumer(
            topic="t", group=group, handler=print, options=manners, backoff=Backoff(), start="earliest"
        )
        subscription = self._subscription = Subscription(LOG, consumer)
        subscription.key_rate = KeyRate(rate_of_keys) if rate_of_keys else None
        ownership = Ownership(LOG, "model", [subscription], 60.0)
        no_pool: Any = None
        self.throttle = Allowance(THREADS)
        settler = Settler(ownership, InFlight(), give_up=lambda: False)
        self._dispatcher = Dispatcher(
            ownership, reader, settler, THREADS, lambda report, ended: no_pool, awake=threading.Event()
        )
        self._dispatcher.throttle = self._dispatcher._in_threads.throttle = self.throttle

    def choose(self, stream: AssignedPartition, most: int, now: float) -> list[Execution]:
        """Dispatch what the dispatcher would with room for so many messages (or batches)."""
        self.throttle.most = most
        stream.lease.subscription = self._subscription
        return self._dispatcher._choose([stream], now).get(stream, [])

    def finished(self, attempt: Attempt) -> None:
        """Take note that the outcome of an attempt was applied."""
        self._dispatcher.in_flight.remove([attempt])

    @property
    def outstanding(self) -> int:
        """How many attempts are in flight."""
        return len(self._dispatcher.in_flight)

    @property
    def alone(self) -> bool:
        """The one that is in flight is in doubt."""
        return self._dispatcher.in_flight.alone
