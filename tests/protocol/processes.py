"""Consumer processes whose threads are actors: the real subscriber, with a thread of handlers that does what it is
told."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from django.db import Error

from sqlqueue.conf import settings
from sqlqueue.consumers.declare.registry import build
from sqlqueue.consumers.engine.subscriber import Subscriber
from sqlqueue.consumers.handlers.executor import HandlerExecutor
from sqlqueue.consumers.handlers.pools import Pool
from sqlqueue.consumers.handlers.runs import Report
from sqlqueue.core.settle_plan import Execution
from sqlqueue.database import retries
from sqlqueue.database.log import Log
from sqlqueue.leases import release
from sqlqueue.leases.acquire import acquire
from tests.protocol.stage import Actor

FOREVER = 86_400.0  # seconds: nothing overruns here


class Queue(Pool):
    """The subscriber's pool: keeps runs until the actor of the handlers comes for them."""

    def __init__(self, report: Report, ended: Callable[[Execution], None]):
        self._report, self._ended = report, ended
        self.runs: deque[tuple[HandlerExecutor, Execution]] = deque()

    def submit(self, handling: HandlerExecutor, run: Execution, reserved: bool = False) -> None:
        self.runs.append((handling, run))

    def work(self) -> None:
        """Run the first run."""
        handling, run = self.runs.popleft()
        handling.run(run, self._report)
        self._ended(run)


class Process:
    """One life of a process. Each call of its clock is a long time later, so that nothing waits for its time."""

    def __init__(
        self, control: Actor, handlers: Actor, topic: str, handler: Callable[[Process, list[Any]], None], **options: Any
    ):
        self.control, self.handlers = control, handlers
        made = build(topic, {"backoff": 0.0, "visibility_timeout": FOREVER, **options})
        consumer = replace(made, handler=lambda given: handler(self, _listed(given)))
        self.queue: Queue
        self.subscriber = Subscriber([consumer], pool=self._make_queue, background_tasks=False)
        self.subscriber.clock = itertools.count(1_000.0, 100.0).__next__
        self.subscription = self.subscriber.subscriptions[0]
        self.tokens: set[int] = set()  # of every time that it took the partition
        self.says: list[str] = []  # what its handlers are to say

    def _make_queue(self, report: Report, ended: Callable[[Execution], None]) -> Queue:
        self.queue = Queue(report, ended)
        return self.queue

    @property
    def name(self) -> str:
        """The subscriber's."""
        return self.subscriber.name

    @property
    def holding(self) -> bool:
        """It believes that it owns the partition."""
        return bool(self.subscription.assigned)

    # -- what its actors are told to do -------------------------------------------------------------------------------

    def take(self) -> None:
        """Take the partition from any owner: the lease ends as it begins. A process that has it begins anew, as after a
        restart of the server."""
        self.subscriber.settler.lose([stream.lease for stream in self.subscriber.ownership.assigned_partitions()])
        group, topic = self.subscription.group_topic
        horizon = self.subscriber.reader.log_end.horizon.value
        try:
            found = acquire(
                Log.of(settings.DATABASE),
                self.name,
                group,
                topic,
                [0],
                priorities=1,
                lease_duration=0.0,
                horizon=horizon,
            )
        except Error as error:
            self._let_pass(error)
            return
        for taken in found:
            self.tokens.add(taken.token)
            self.subscription.adopt(taken, float("inf"), self.subscriber.clock())

    def free(self) -> None:
        """Free its leases as its supervisor does, which leaves them to expire where the database does not answer."""
        try:
            release.free(Log.of(settings.DATABASE), self.name)
        except Error as error:
            self._let_pass(error)

    def run_once(self) -> None:
        """One round of its control thread, balancing left out."""
        self.subscriber._poll_at, self.subscriber._balance_at = 0.0, float("inf")
        self.subscriber.run_once_guarded()

    def close(self) -> None:
        """End gracefully, without time to wait for what runs."""
        self.subscriber.stop(timeout=0.0)
        self.subscriber.close()

    @staticmethod
    def _let_pass(error: Error) -> None:
        if retries.classify(error) is retries.ErrorKind.OTHER:
            raise error
        retries.drop_connection(Log.of(settings.DATABASE))


def _listed(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [given]
