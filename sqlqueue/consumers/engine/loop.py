"""The loop: what the control thread of a consumer process does in one iteration, and when it is needed again."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from sqlqueue.conf import settings
from sqlqueue.consumers.background.duties import RESERVE
from sqlqueue.consumers.background.task import SELDOM, BackgroundTask
from sqlqueue.consumers.declare.registry import Consumer
from sqlqueue.consumers.engine.dispatcher import Dispatcher
from sqlqueue.consumers.engine.in_flight import InFlight
from sqlqueue.consumers.engine.ownership import SERVER_CHANGED, Ownership, WorkingSet
from sqlqueue.consumers.engine.reader import Reader
from sqlqueue.consumers.engine.settler import Settler
from sqlqueue.consumers.engine.subscription import Registration, Subscription
from sqlqueue.consumers.handlers.pools import MakePool
from sqlqueue.consumers.process.liveness import Liveness
from sqlqueue.core.logfmt import logfmt
from sqlqueue.core.partition.assigned import AssignedPartition
from sqlqueue.core.partition.ref import HeldLease
from sqlqueue.database.lock_timeouts import TableLocked
from sqlqueue.database.log import Log, home_log
from sqlqueue.database.server_identity import ServerIdentity
from sqlqueue.leases import heartbeat
from sqlqueue.operations import requests

logger = logging.getLogger("sqlqueue")

REGISTER_CHECK = 0.1  # seconds between two attempts to register groups with start="latest"
OPTIONS_CHECK = 0.8  # seconds between two reads of what is paused: nothing starts a second after a pause
ASK_EVERY = 1.0  # seconds: polls that far apart ask for operators' requests, too
BEHIND_LOOK = 0.05  # seconds between two looks while every partition has to be read up to what is known already
LACKING = 4  # so much sooner than usual it balances again while it is below its share
CLOCK_STEP = 0.001  # seconds: the step of the databases' coarsest clock, SQLite's


class Loop:
    """The parts of a consumer process, and what its control thread does in one iteration: it applies outcomes,
    balances, reads, dispatches and settles. limited: it keeps to its groups' hours and limits.

    liveness: what the supervisor sees; awake: set when there may be something to do before the time that `run_once` has
    returned; failed: too many handlers hang, or a table is missing, so that the process should be replaced.
    """

    def __init__(
        self,
        consumers: Sequence[Consumer],
        *,
        log: Log | None = None,
        name: str = "",
        threads: int | None = None,
        pool: MakePool | None = None,
        liveness: Liveness | None = None,
        limited: bool = True,
    ):
        self.log, self.name = log or home_log(), name or heartbeat.subscriber_name()
        self.clock, self.liveness = time.monotonic, liveness or Liveness()
        self.awake = threading.Event()
        self.stopping = self.failed = False  # stopping: no new attempt starts
        self._stop_deadline = 0.0
        self.subscriptions = [Subscription(self.log, consumer, limited) for consumer in consumers]
        self.ownership = Ownership(self.log, self.name, self.subscriptions, settings.LEASE_DURATION)
        self.ownership.progress = lambda: self.liveness.mark("iteration")
        self.reader = Reader(self.log, self.ownership.server)
        self.registration = Registration(self.log, self.subscriptions)
        self.in_flight = InFlight()
        self.settler = Settler(self.ownership, self.in_flight, self._give_up)
        self.ownership.lost = self.settler.lose
        self.dispatcher = Dispatcher(self.ownership, self.reader, self.settler, threads, pool, self.awake)
        self.working_set = WorkingSet()
        self.withdraw: Callable[[], bool] | None = None  # where several groups share the threads
        self.scheduler: BackgroundTask | None = None
        self.requests: BackgroundTask | None = None
        self.lost: deque[list[HeldLease]] = deque()  # the lease renewer appends
        self._notified = False
        self._pause: float = settings.POLL_INTERVAL
        self._scheduled_at, self._looked_at = math.inf, -math.inf
        self._poll_at = self._balance_at = self._options_at = self._notice_at = self._register_at = self._ask_at = 0.0
        self._balance_pause: float = settings.BALANCE_INTERVAL
        self._lacked = False  # it was below its share after the last balance

    def notify(self) -> None:
        """Wake the loop because something was published. From any thread."""
        self._notified = True
        self.awake.set()

    def balance_soon(self) -> None:
        """Balance in the next iteration."""
        self._balance_at = 0.0

    def stop(self, timeout: float | None = None) -> None:
        """Ask for a graceful stop: nothing new starts, and running handlers have `timeout` seconds
        (SHUTDOWN_TIMEOUT)."""
        self.stop_soon(timeout)
        self.awake.set()

    def stop_soon(self, timeout: float | None = None) -> None:
        """Ask for a graceful stop from a signal handler, which may not take a lock: the loop stops when it next
        wakes."""
        if not self.stopping:
            self._stop_deadline = self.clock() + (settings.SHUTDOWN_TIMEOUT if timeout is None else timeout)
            self.stopping = True
            self.liveness.mark("stopping")

    def _fail(self) -> None:
        """Stop because too many handlers hang, so that another process can replace this one."""
        self.failed = True
        self.stop()

    def _give_up(self) -> bool:
        """Return whether to stop waiting for an unreachable database. A loop that waits for it counts as alive."""
        self.liveness.mark("iteration")
        return self.stopping and self._out_of_time()

    def _out_of_time(self) -> bool:
        return self.clock() >= self._stop_deadline

    def start_over(self) -> None:
        """Forget everything known of the log, since the server was started again or is another one, and acquire the
        partitions anew. The outcomes of handlers that still run are ignored."""
        logger.warning(logfmt("server_changed", subscriber=self.name, meaning="acquiring the partitions anew"))
        for subscription in self.subscriptions:
            if subscription.limiter is not None:
                subscription.limiter.void()
        self.settler.lose([assigned.lease for assigned in self.ownership.assigned_partitions()], SERVER_CHANGED)
        self.ownership.server = ServerIdentity(self.log)
        self.reader.forget(self.ownership.server)
        self.registration.begin = None
        self._scheduled_at = math.inf
        self._poll_at = self._balance_at = self._options_at = self._notice_at = 0.0

    def run_once(self) -> float:
        """Apply outcomes, read, dispatch, settle; return for how many seconds the control thread may sleep."""
        now = self.clock()
        worked = applied = self.dispatcher.apply_reports(now)
        self.dispatcher.pace.measure(now, self.reader.log_end.highest)
        while self.lost:
            self.settler.lose(self.lost.popleft())
        if self.registration.latest and now >= self._register_at and not self.stopping:
            self._register_at = now + REGISTER_CHECK
            if self.registration.register_latest(self.reader.log_end.horizon):
                self.balance_soon()
        if now >= self._balance_at and not self.stopping:
            self.balance()
            self._refreshed(now)
        if self.ownership.changed:
            self._visit_all()
        if not self.stopping:
            worked = self._read(now) or worked
        if now >= self._options_at and not self.stopping and self._follows_options():
            self.ownership.refresh(now)
            self._refreshed(now)
            self._visit_all()
        assigned_partitions = self.working_set.partitions
        if not self.in_flight.end_overruns(self.dispatcher.pool, self.dispatcher.finish, now):
            logger.error(logfmt("pool_exhausted", subscriber=self.name, meaning="too many handlers hang"))
            self._fail()
        self._renew_shares(now)
        written = self.dispatcher.advance(assigned_partitions, now, dispatch=not self.stopping)
        if written or applied:
            self.dispatcher.pace.settles += 1
        worked = written or worked
        self.settler.store_progress(assigned_partitions, now)
        if not self.stopping:
            self.settler.release(self.ownership.drained(), now)
        self._pause = settings.POLL_INTERVAL if worked else min(self._pause * 2, settings.IDLE_POLL_INTERVAL)
        self.working_set.rest(self.reader.log_end.watched_to)
        return self._sleep(self.working_set.partitions)

    def _follows_options(self) -> bool:
        """Tell whether options that have changed could matter now: something runs, may be started, or would be if its
        group did not rest. A process that has nothing to do reads them with every balance only."""
        if self.in_flight or any(each.resting for each in self.subscriptions):
            return True
        return any(assigned.has_candidates or assigned.in_doubt.entries for assigned in self.working_set.partitions)

    def _refreshed(self, now: float) -> None:
        self.in_flight.release_where(lambda execution, subscription: subscription.resting)
        self._options_at = now + OPTIONS_CHECK

    def _visit_all(self) -> None:
        """Let this iteration visit every partition that is owned."""
        self.ownership.changed = False
        assigned_partitions = self.ownership.assigned_partitions()
        self.reader.share(assigned_partitions)
        self.working_set.wake_all(assigned_partitions, self.reader.log_end.watched_to)

    def balance(self) -> None:
        """Acquire partitions up to the fair share, and mark those beyond it as leaving. Below its share it looks again
        sooner, less and less so while there is nothing to get."""
        if self.registration.undeclared:
            self.registration.register_declared()
        self.ownership.changed = True  # options may have, too
        try:
            acquired = self.ownership.balance(self.reader.log_end.horizon.value, self.clock)
            if self.withdraw is not None and self.withdraw():
                acquired = self.ownership.balance(self.reader.log_end.horizon.value, self.clock) or acquired
        except TableLocked as error:
            logger.warning(logfmt("balance_put_off", subscriber=self.name, error=error))
            self._balance_at = self.clock() + settings.BALANCE_INTERVAL
            return
        if acquired:
            self._poll_at = 0.0
        longest = settings.BALANCE_INTERVAL
        if not self.ownership.lacks:
            self._balance_pause = longest
        elif acquired or not self._lacked:
            self._balance_pause = longest / LACKING
        else:
            self._balance_pause = min(2 * self._balance_pause, longest)
        self._lacked = self.ownership.lacks
        self._balance_at = self.clock() + self._balance_pause

    def _renew_shares(self, now: float) -> None:
        """Take shares of the groups' limits where that is due. While the process stops, handlers still hold slots."""
        for subscription in self.subscriptions:
            if subscription.limiter is not None:
                subscription.limiter.running = self.in_flight.running(subscription)
                waits = [] if self.stopping or subscription.resting else list(subscription.assigned.values())
                subscription.limiter.renew(self.name, waits, now)

    def _read(self, now: float) -> bool:
        """Look for new messages, fetch for partitions with room, load due rows; return whether anything was found."""
        found_new = False
        if now >= self._scheduled_at and self.scheduler is not None:  # it notifies when it has moved what is due
            self.scheduler.wake()
            self._scheduled_at, self._poll_at = math.inf, min(self._poll_at, now + settings.POLL_INTERVAL)
        if (now >= self._poll_at or self._notified) and not self._looks_later(now):
            notified, self._notified = self._notified, False
            living = self.ownership.balancer.living
            ask = self.requests is not None and now >= self._ask_at
            found_new = self.reader.log_end.look(
                self.working_set, now, self.dispatcher.pace.linger, living, ask, notified
            )
            if self.requests is not None and ask:
                self._ask_at = now + ASK_EVERY
                often = requests.INTERVAL * (RESERVE if self.ownership.balancer.in_reserve else 1)
                self.requests.look_every(often if self.reader.log_end.requested else SELDOM)
            self._poll_at, self._looked_at = now + self._pause, now
            if self.scheduler is not None:
                self._scheduled_at = self._follow_schedule(self.scheduler)
        if now >= self._notice_at:
            self._notice_at = now + settings.HEARTBEAT_INTERVAL
            self._visit_all()
            for subscription in self.subscriptions:
                if any(assigned.delays.next_due() is not None for assigned in subscription.assigned.values()) and (
                    self.reader.notice_changed(*subscription.group_topic, subscription.assigned, now)
                ):
                    self._notice_at = now  # there are more
        assigned_partitions = self.working_set.partitions
        count = self.reader.read(
            [assigned for assigned in assigned_partitions if self.ownership.may_dispatch(assigned)], now
        )
        self.reader.load_due(assigned_partitions, now)
        return found_new or count > 0

    def _looks_later(self, now: float) -> bool:
        """Tell whether it need not be known yet what is new: all has to be read up to what was known at the last look,
        a moment ago."""
        return now < self._looked_at + BEHIND_LOOK and self.working_set.behind(self.reader.log_end.horizon.value)

    def _follow_schedule(self, scheduler: BackgroundTask) -> float:
        """Wake the scheduler if a message is due; return when the next scheduled message is due."""
        due_in = self.reader.log_end.due_in
        if due_in is None:
            return math.inf
        if due_in <= 0:
            scheduler.wake()
            return math.inf  # the next poll tells whether there is more
        return self.clock() + due_in + CLOCK_STEP

    def _sleep(self, assigned_partitions: Sequence[AssignedPartition]) -> float:
        """Return how long to sleep: until a report, a notification, a due row, the next poll or balance."""
        now = self.clock()
        if self.in_flight.reports or self.lost or (self._notified and not self._looks_later(now)):
            return 0.0
        idle = not self.in_flight
        looks_in = self._looked_at + BEHIND_LOOK - now if self._notified else math.inf
        if (threads := self.dispatcher.reserved_threads) is not None:
            looks_in = min(looks_in, threads.wake_at - now)
        pause = min(self._pause, looks_in, self._balance_at - now, self._scheduled_at - now)
        for assigned in assigned_partitions:
            if not self.ownership.may_dispatch(assigned):
                continue
            limiter = assigned.lease.subscription.limiter
            held_back = limiter is not None and limiter.held_back
            if self.reader.wants(assigned) or (idle and assigned.has_candidates and not held_back):
                return 0.0
            if limiter is not None:
                pause = min(pause, limiter.wake_at(now) - now)
            due = assigned.delays.next_due()
            if due is not None:
                pause = min(pause, due - now)
        return max(0.0, pause)
