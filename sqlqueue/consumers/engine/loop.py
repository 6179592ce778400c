"""The loop: what the control thread of a consumer process does in one iteration, and when it is needed again."""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence

from django.db import Error

from sqlqueue.conf import settings
from sqlqueue.consumers.background.effects import RESERVE
from sqlqueue.consumers.background.task import SELDOM, BackgroundTask, NamedServerWarning
from sqlqueue.consumers.engine.dispatcher import Dispatcher
from sqlqueue.consumers.engine.ownership import SERVER_CHANGED, Ownership, WorkingSet
from sqlqueue.consumers.engine.reader import Reader
from sqlqueue.consumers.engine.reserved_threads import Withdrawals
from sqlqueue.consumers.engine.settler import ProgressWriter
from sqlqueue.consumers.engine.subscription import Registration
from sqlqueue.consumers.process.liveness import Liveness
from sqlqueue.core.logfmt import logfmt
from sqlqueue.core.partition.assigned import AssignedPartition
from sqlqueue.core.partition.ref import HeldLease
from sqlqueue.database import retries
from sqlqueue.database.lock_timeouts import TableLocked
from sqlqueue.database.server_identity import NotNamedServer, ServerChanged, ServerIdentity, SessionReplaced
from sqlqueue.operations import requests
from sqlqueue.signals import announce, operation_retried

logger = logging.getLogger("sqlqueue")

REGISTER_CHECK = 0.1  # seconds between two attempts to register groups with start="latest"
OPTIONS_CHECK = 0.8  # seconds between two reads of what is paused: nothing starts a second after a pause
ASK_EVERY = 1.0  # seconds: polls that far apart ask for operators' requests, too
ELSEWHERE_PAUSE = 1.0  # seconds before the next look for the named server
SESSION_PAUSE = 0.05  # seconds before the next iteration when a statement has run in an unknown session
BEHIND_LOOK = 0.05  # seconds between two looks while every partition has to be read up to what is known already
LACKING = 4  # so much sooner than usual it balances again while it is below its share
CLOCK_STEP = 0.001  # seconds: the step of the databases' coarsest clock, SQLite's


class Loop:
    """Applies outcomes, balances, reads, dispatches, settles. `run_once` is one iteration; `run_once_guarded` survives
    the database's errors in it. `awake` is set when there may be something to do before the time that they return;
    `fail` is called when so many handlers hang that the process should be replaced."""

    def __init__(
        self,
        ownership: Ownership,
        reader: Reader,
        registration: Registration,
        dispatcher: Dispatcher,
        liveness: Liveness,
        clock: Callable[[], float],
        awake: threading.Event,
        fail: Callable[[], None],
    ):
        self.ownership, self.registration = ownership, registration
        self.reader, self.log_end = reader, reader.log_end
        self.dispatcher, self.settler, self.in_flight = dispatcher, dispatcher.settler, dispatcher.in_flight
        self.liveness, self.clock, self.awake = liveness, clock, awake
        self.stopping = False  # no new attempt starts
        self.lost: deque[list[HeldLease]] = deque()  # the lease renewer appends
        self.scheduler: BackgroundTask | None = None
        self.requests: BackgroundTask | None = None
        self.meet_server: Callable[[], None] = lambda: None  # before it goes on with another server
        self.renew_name: Callable[[float], None] = lambda now: None  # of the server, where it is the named one
        self._unmet = False
        self._fail = fail
        self.withdrawals: Withdrawals | None = None  # where several groups share the threads
        self.progress = ProgressWriter(ownership.log)
        self.named_server = NamedServerWarning(ownership.log, subscriber=ownership.subscriber)
        self.working_set = WorkingSet()
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

    def run_once_guarded(self) -> float:
        """Run one iteration; after a database error it is run again soon. Return for how many seconds the control
        thread may sleep. Raises database errors that no retry helps against."""
        self.liveness.mark_iteration()
        try:
            if self._unmet:
                self.meet_server()
                self._unmet = False
            self.ownership.server.make_sure()
            self.named_server.over()
            self.renew_name(self.clock())
            pause = self.run_once()
            self.settler.trouble.over()
            return pause
        except ServerChanged:
            self._unmet = True
            self.start_over()
            return 0.0
        except NotNamedServer as error:
            self._unmet = True
            if self.ownership.leases():
                self.start_over()
            self.named_server.elsewhere(error)
            return ELSEWHERE_PAUSE
        except SessionReplaced as error:
            logger.warning(logfmt("session_replaced", subscriber=self.ownership.subscriber, meaning=error))
            return SESSION_PAUSE
        except Error as error:
            self.ownership.server.doubtful = True
            kind = retries.classify(error)
            if kind in retries.FOR_GOOD:
                raise  # decisions may not have been written: only a fresh process is safe
            self.settler.trouble.failed(error)
            logger.warning(
                logfmt("iteration_failed", subscriber=self.ownership.subscriber, error_kind=kind.name, error=error)
            )
            facts = {"operation": "iteration", "error_kind": kind.name, "error": error}
            announce(operation_retried, Loop, **facts, database=self.ownership.log.label)
            retries.drop_connection(self.ownership.log)
            return 0.05 if kind is retries.ErrorKind.CONTENTION else self.settler.trouble.pause

    def start_over(self) -> None:
        """Forget everything known of the log, since the server was started again or is another one, and acquire the
        partitions anew. The outcomes of handlers that still run are ignored."""
        logger.warning(
            logfmt("server_changed", subscriber=self.ownership.subscriber, meaning="acquiring the partitions anew")
        )
        for subscription in self.ownership.subscriptions:
            if subscription.limiter is not None:
                subscription.limiter.void()
        self.settler.lose([assigned.lease for assigned in self.ownership.assigned_partitions()], SERVER_CHANGED)
        self.ownership.server = ServerIdentity(self.ownership.log)
        self.reader.forget(self.ownership.server)
        self.registration.begin = None
        self._scheduled_at = math.inf
        self._poll_at = self._balance_at = self._options_at = self._notice_at = 0.0

    def run_once(self) -> float:
        """Apply outcomes, read, dispatch, settle; return for how many seconds the control thread may sleep."""
        now = self.clock()
        worked = applied = self.dispatcher.apply_reports(now)
        self.dispatcher.pace.measure(now, self.log_end.highest)
        while self.lost:
            self.settler.lose(self.lost.popleft())
        if self.registration.latest and now >= self._register_at and not self.stopping:
            self._register_at = now + REGISTER_CHECK
            if self.registration.register_latest(self.log_end.horizon):
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
            logger.error(
                logfmt("pool_exhausted", subscriber=self.ownership.subscriber, meaning="too many handlers hang")
            )
            self._fail()
        self._renew_shares(now)
        written = self.dispatcher.advance(assigned_partitions, now, dispatch=not self.stopping)
        if written or applied:
            self.dispatcher.pace.settled()
        worked = written or worked
        self.progress.write(assigned_partitions, now)
        if not self.stopping:
            self.settler.release(self.ownership.drained(), now)
        self._pause = settings.POLL_INTERVAL if worked else min(self._pause * 2, settings.IDLE_POLL_INTERVAL)
        self.working_set.rest(self.log_end.watched_to)
        return self._sleep(self.working_set.partitions)

    def _follows_options(self) -> bool:
        """Tell whether options that have changed could matter now: something runs, may be started, or would be if its
        group did not rest. A process that has nothing to do reads them with every balance only."""
        if self.dispatcher.outstanding or any(each.resting for each in self.ownership.subscriptions):
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
        self.working_set.wake_all(assigned_partitions, self.log_end.watched_to)

    def balance(self) -> None:
        """Acquire partitions up to the fair share, and mark those beyond it as leaving. Below its share it looks again
        sooner, less and less so while there is nothing to get."""
        if self.registration.undeclared:
            self.registration.register_declared()
        self.ownership.changed = True  # options may have, too
        try:
            acquired = self.ownership.balance(self.log_end.horizon.value, self.clock)
            if self.withdrawals is not None and self.withdrawals.follow():
                acquired = self.ownership.balance(self.log_end.horizon.value, self.clock) or acquired
        except TableLocked as error:
            logger.warning(logfmt("balance_put_off", subscriber=self.ownership.subscriber, error=error))
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
        for subscription in self.ownership.subscriptions:
            if subscription.limiter is not None:
                subscription.limiter.running = self.in_flight.running(subscription)
                waits = [] if self.stopping or subscription.resting else list(subscription.assigned.values())
                subscription.limiter.renew(self.ownership.subscriber, waits, now)

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
            found_new = self.log_end.look(self.working_set, now, self.dispatcher.pace.linger, living, ask, notified)
            if self.requests is not None and ask:
                self._ask_at = now + ASK_EVERY
                often = requests.INTERVAL * (RESERVE if self.ownership.balancer.in_reserve else 1)
                self.requests.look_every(often if self.log_end.requested else SELDOM)
            self._poll_at, self._looked_at = now + self._pause, now
            if self.scheduler is not None:
                self._scheduled_at = self._follow_schedule(self.scheduler)
        if now >= self._notice_at:
            self._notice_at = now + settings.HEARTBEAT_INTERVAL
            self._visit_all()
            for subscription in self.ownership.subscriptions:
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
        return now < self._looked_at + BEHIND_LOOK and self.working_set.behind(self.log_end.horizon.value)

    def _follow_schedule(self, scheduler: BackgroundTask) -> float:
        """Wake the scheduler if a message is due; return when the next scheduled message is due."""
        due_in = self.log_end.due_in
        if due_in is None:
            return math.inf
        if due_in <= 0:
            scheduler.wake()
            return math.inf  # the next poll tells whether there is more
        return self.clock() + due_in + CLOCK_STEP

    def _sleep(self, assigned_partitions: Sequence[AssignedPartition]) -> float:
        """Return how long to sleep: until a report, a notification, a due row, the next poll or balance."""
        now = self.clock()
        if self.dispatcher.reported or self.lost or (self._notified and not self._looks_later(now)):
            return 0.0
        idle = not self.dispatcher.outstanding
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
