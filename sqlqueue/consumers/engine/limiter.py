"""The limits of a group in one process: how many messages and handlers may start, by the share that the process has.

A message that has to wait for its token or slot stays in memory, unclaimed: it is charged nothing. Shares are taken
from the table twice in each BALANCE_INTERVAL, and sooner by a process that has nothing left, or has failed too often;
an idle one takes none.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import datetime

from django.db import Error

from sqlqueue.conf import settings
from sqlqueue.core.fair_shares import TokenStock, wait
from sqlqueue.core.flow import Flow
from sqlqueue.core.logfmt import logfmt
from sqlqueue.core.outcomes import ACKED, DEAD, EXPIRED, RETRIED, Outcome
from sqlqueue.core.partition.assigned import AssignedPartition
from sqlqueue.core.settle_plan import Attempt, Execution
from sqlqueue.database.log import Log
from sqlqueue.leases.limit_shares import Need, Share, Times, take

logger = logging.getLogger("sqlqueue")

TAKES = 2  # in each BALANCE_INTERVAL
EARLY = 0.25  # of the time between two takes: so long waits who has nothing left
TRIAL_WAITS = 2  # of the times between two trials: so long the first trial is awaited, since a handler may hang
HEADROOM = 1.25  # of what is drawn ahead: a process that was late has not lost its tokens


class GroupLimiter:
    """For the control thread. Times are monotonic seconds; running: how many executions of the group are at work, as
    the dispatcher has counted them."""

    def __init__(self, log: Log, group: str, topic: str, flow: Flow, batch: bool):
        self.log, self.group, self.topic, self.flow = log, group, topic, flow
        self.running = 0
        self.held_back = False  # something could start but for a token or a slot
        self._told = False  # the table may say that it has, or needs, something
        self._batch = batch
        self._stock = TokenStock()
        self._slots = 0
        self._deadline = self._early_at = self._take_at = 0.0
        self._used, self._since = 0, -math.inf
        self._failed = 0
        self._open = self._tried = self._succeeded = False
        self._trial: datetime | None = None  # one message may be tried here, and none elsewhere before that
        self._attempt: Attempt | None = None  # of the message that is tried
        self._overdue_at = 0.0  # then another one may be tried beside it
        self._overdue: list[Attempt] = []  # of messages whose trials were not awaited any longer

    # -- what may start -----------------------------------------------------------------------------------------------

    def messages(self, now: float) -> int:
        """Return how many messages may start."""
        if self.flow.budget is not None and (now >= self._deadline or self._open):
            return int(now < self._deadline and self._trial is not None and not self._tried)
        if self.flow.rate is not None:
            return self._stock.available(now)
        return sys.maxsize

    def executions(self, now: float) -> int:
        """Return how many executions may start."""
        if self.flow.concurrency is not None:
            return max(0, self._slots - self.running) if now < self._deadline else 0
        return sys.maxsize

    def admits(self, now: float) -> bool:
        """Return whether anything may start; if not, record that something waits."""
        admits = self.messages(now) > 0 and self.executions(now) > 0
        self.held_back = self.held_back or not admits
        return admits

    def started(self, executions: Sequence[Execution]) -> None:
        """Count what was chosen to start."""
        messages = sum(len(each.attempts) for each in executions)
        self.running += len(executions)
        self._used += messages
        if self._trial is not None and not self._tried:
            self._tried, self._attempt = True, executions[0].attempts[0]
        if self.flow.rate is not None:
            self._stock.use(messages)

    def finished(self, attempt: Attempt, outcome: Outcome) -> None:
        """Count the outcome of an attempt. Where it is none (the message was too late, was postponed or released),
        another message may be tried in its place; one that was too late has used no token."""
        is_attempt = outcome is not EXPIRED and outcome.kind in (ACKED, RETRIED, DEAD)
        if outcome is EXPIRED:
            self._stock.give_back(1)
        if is_attempt and outcome.kind != ACKED:
            self._failed += 1
        if attempt is self._attempt:
            self._attempt = None
            self._tried = is_attempt or self._succeeded
        elif attempt in self._overdue:
            self._overdue.remove(attempt)
        else:
            return
        if outcome.kind == ACKED:
            self._tried = self._succeeded = True

    # -- the share ----------------------------------------------------------------------------------------------------

    def follow(self, flow: Flow) -> None:
        """Let other limits hold, from the next take on, which is now."""
        if flow != self.flow:
            self.flow = flow
            self._early_at = self._take_at = 0.0

    def void(self) -> None:
        """Let nothing start before the next take: it is not known what the table says."""
        self._stock, self._slots, self._early_at, self._deadline = TokenStock(), 0, 0.0, 0.0

    def wake_at(self, now: float) -> float:
        """Return when more may start; only a handler's end lets more start before that."""
        if not self.held_back:
            return math.inf
        if self._exhausted:
            return self._early_at
        at = self._take_at
        return min(at, self._stock.next_release(now)) if self.flow.rate is not None else at

    @property
    def _exhausted(self) -> bool:
        """Whether there is nothing left of the share, not even for later."""
        rate, concurrency = self.flow.rate is not None, self.flow.concurrency is not None
        tries = self.flow.budget is not None and (self._open or not self._deadline) and self._trial is None
        return tries or (rate and not self._stock.left) or (concurrency and not self._slots)

    def renew(self, subscriber: str, partitions: Iterable[AssignedPartition], now: float) -> None:
        """Take a share if that is due: for what waits in these partitions, and for what runs. One transaction."""
        waiting = list(partitions)
        budget = self.flow.budget
        # More has failed here than allowed: that is told at once, unless there is no share, and so nothing starts.
        overspent = budget is not None and not self._open and now < self._deadline and self._failed > budget.count
        early = overspent or (self.held_back and self._exhausted and now >= self._early_at)
        busy = self.held_back or self._used or self.running or self._failed or self._told
        if not early and not (busy and now >= self._take_at):
            return
        interval, began = settings.BALANCE_INTERVAL, time.monotonic()
        ahead = interval / TAKES
        times = Times(ahead * HEADROOM, interval, settings.LEASE_DURATION)
        try:
            self._told, need = True, self._need(waiting, now, ahead)
            share = take(self.log, subscriber, self.group, self.topic, need, times)
        except Error:
            self.void()
            raise
        if share is None:
            self.void()
            self._early_at = self._take_at = now + ahead
            return
        self._told = bool(need.demand or need.held_back or share.slots or share.trial)
        self._apply(share, now, ahead)
        self._deadline = began + settings.LEASE_DURATION

    def _apply(self, share: Share, now: float, ahead: float) -> None:
        self.flow, self._slots = share.flow, share.slots
        # A batch takes what it can get at once: evenly released tokens would make batches of one.
        self._stock.draw(share.tokens, now, 0.0 if self._batch else ahead, ahead * HEADROOM)
        self._take_at = now + ahead
        wait = share.next_token if share.flow.rate is not None and not share.tokens else 0.0
        self._early_at = now + min(ahead, max(ahead * EARLY, wait))
        self._used, self._since, self.held_back = 0, now, False
        self._follow_breaker(share, now)
        if self._open:
            self._early_at = self._take_at

    def _need(self, partitions: list[AssignedPartition], now: float, ahead: float) -> Need:
        elapsed = max(now - self._since, ahead * EARLY)
        demand = self._used / elapsed * HEADROOM if math.isfinite(elapsed) else 0.0
        held_back, candidates = self.held_back and bool(partitions), 0
        if held_back:
            # They are not ready: they are loaded one by one.
            in_doubt = sum(len(each.in_doubt.entries) for each in partitions)
            ready = in_doubt + sum(each.queues.ready for each in partitions)
            candidates = max(1, in_doubt + sum(each.candidates for each in partitions))
            demand += max(1, ready) / ahead
            if self.flow.rate is not None and any(not each.room for each in partitions):  # there is more to read
                demand = max(demand, self.flow.rate.per_second)
        if self.flow.rate is not None:
            demand = min(demand, self.flow.rate.per_second)
        wanted = max(self.running, min(self.running + candidates, self.flow.concurrency or 0))
        unused = None if self._tried else self._trial
        told = (self._failed, self._tried, self._succeeded, unused)
        return Need(demand, self._stock.left, self.running, wanted, held_back, *told)

    def _follow_breaker(self, share: Share, now: float) -> None:
        if share.turned:
            fields = {"group": self.group, "topic": self.topic, "budget": share.flow.budget}
            if share.open:
                logger.warning(logfmt("retry_budget_spent", **fields, meaning="one message is tried at a time"))
            else:
                logger.info(logfmt("retry_budget_restored", **fields))
        self._failed, self._open, self._succeeded = 0, share.open, False
        self._trial = share.trial
        tried = [one for one in (*self._overdue, self._attempt) if one is not None] if share.open else []
        tried = [one for one in tried if one.outcome is None and not one.lease.lost]
        awaited = self._attempt in tried and now < self._overdue_at
        self._tried, self._attempt = awaited, self._attempt if awaited else None
        self._overdue = [one for one in tried if one is not self._attempt]
        if share.trial is not None and share.flow.budget is not None:
            between = wait(share.flow.budget.seconds, settings.BALANCE_INTERVAL)
            # Twice as long after each that hangs, so that few threads do.
            self._overdue_at = now + TRIAL_WAITS * 2 ** len(self._overdue) * between.total_seconds()
