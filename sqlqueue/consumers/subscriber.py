"""The subscriber: one process's loop. It knows only turn, delay and stop; what a turn does is somebody else's verb."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from django.db import Error, connections

from sqlqueue.conf import settings
from sqlqueue.consumers.ownership import Ownership
from sqlqueue.consumers.pool import Pool, ThreadPool
from sqlqueue.consumers.reader import Reader
from sqlqueue.consumers.registry import Consumer
from sqlqueue.consumers.residents import Collector, Keeper, Resident, Scheduler
from sqlqueue.consumers.subscription import Subscription
from sqlqueue.consumers.throttle import Throttle
from sqlqueue.core import outcomes
from sqlqueue.core.outcomes import UNSTARTED, Outcome, VisibilityTimeout
from sqlqueue.core.plan import Hand, Plan, Run
from sqlqueue.core.stream import Stream
from sqlqueue.database import faults
from sqlqueue.leases import heartbeat
from sqlqueue.log import bell, groups
from sqlqueue.log.settle import settle
from sqlqueue.log.status import anything_due
from sqlqueue.signals import (
    announce,
    dead_lettered,
    delivery_failed,
    delivery_settled,
    subscriber_started,
    subscriber_stopped,
)

logger = logging.getLogger("sqlqueue")

OVERRUN_CHECK = 0.1  # seconds between two looks at the running handlers' deadlines
DRAIN_CHECK = 0.2


class Subscriber:
    """Hosts consumers: owns partitions, reads, hands out, settles. `turn` is one round; `run` goes on until `stop`.

    The control thread (whoever calls turn) alone touches streams and the reader. Handlers' threads only report outcomes.
    """

    def __init__(
        self,
        consumers: Sequence[Consumer],
        *,
        name: str = "",
        threads: int | None = None,
        pool: Callable[[Callable[[Hand, Outcome], None], Callable[[Run], None]], Pool] | None = None,
        residents: bool = True,
    ):
        self.alias: str = settings.DATABASE
        self.name = name or heartbeat.subscriber_name()
        self.clock = time.monotonic
        self.threads: int = threads or settings.THREADS
        self.subscriptions = [Subscription(self.alias, consumer) for consumer in consumers]
        self._by_place = {subscription.place: subscription for subscription in self.subscriptions}
        self.ownership = Ownership(self.alias, self.name, self.subscriptions, settings.LEASE_DURATION)
        self.reader = Reader(self.alias)
        self.throttle = Throttle(self.threads)
        self._reports: deque[tuple[Hand, Outcome]] = deque()
        self._lost: deque[list[Stream]] = deque()
        self._runs: dict[Run, Subscription] = {}
        self._ended: deque[Run] = deque()
        self._outstanding = 0
        self._in_company = 0  # how many of them stand in a batch behind its first: a batch is one piece of work
        self.settled = 0  # deliveries settled by this subscriber so far
        self._alone = False
        self._awake = threading.Event()
        self._rung = False
        self._stopping = False
        self._deadline_of_stop = 0.0
        self._with_residents = residents
        self._residents: list[Resident] = []
        self._stop_listening: Callable[[], None] = lambda: None
        self._doorbell: bell.Doorbell | None = None
        self._pool: Pool | None = None
        self._make_pool = pool or (lambda report, ended: ThreadPool(self.threads, report, ended))
        self._pause = settings.POLL_INTERVAL
        self._look_at = self._balance_at = self._overruns_at = 0.0

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Register the groups, show a heartbeat, start the residents and the pool."""
        for subscription in self.subscriptions:
            consumer = subscription.consumer
            groups.register(self.alias, consumer.group, consumer.topic, consumer.start, self.reader.horizon)
        self._pool = self._make_pool(self._report, self._run_ended)
        self._stop_listening = bell.listen(self._ring)
        address = ""
        if self._with_residents and settings.WAKE:
            self._doorbell = bell.Doorbell(settings.WAKE_ADDRESS, self._ring)
            address = self._doorbell.address
        keeper = Keeper(self.ownership, settings.HEARTBEAT_INTERVAL, address, self.activity, self._lost.append)
        keeper.beat()
        if self._with_residents:
            self._residents = [
                keeper,
                Scheduler(self.alias, settings.IDLE_POLL_INTERVAL * 5),
                Collector(self.alias, settings.COLLECT_INTERVAL, settings.LEASE_DURATION),
            ]
            for resident in self._residents:
                resident.start()
        places = [subscription.place for subscription in self.subscriptions]
        announce(subscriber_started, Subscriber, subscriber=self.name, subscriptions=places)

    def stop(self, timeout: float | None = None) -> None:
        """Ask for a graceful end: nothing new starts, and what runs has `timeout` seconds (SHUTDOWN_TIMEOUT) to end."""
        if not self._stopping:
            self._deadline_of_stop = self.clock() + (settings.SHUTDOWN_TIMEOUT if timeout is None else timeout)
            self._stopping = True
        self._awake.set()

    @property
    def stopping(self) -> bool:
        """A stop has been asked for."""
        return self._stopping

    def activity(self) -> str:
        """Return in a few words what it does now."""
        return f"{self._outstanding} in hand of {len(self.ownership.tokens())} partitions"

    def run(
        self,
        drain: bool = False,
        alive: Callable[[], bool] = lambda: True,
        started: Callable[[], None] = lambda: None,
    ) -> None:
        """Go on until `stop`; with `drain`, until everything due has been settled; or until `alive` says no.

        A database that is away is waited for. Every exit but a second signal releases the leases.
        """
        ask_at = 0.0
        self.start()
        try:
            started()
            while not self._stopping and alive():
                pause = self._guarded_turn()
                if drain and self.idle:
                    if self.clock() >= ask_at and not self.anything_due():
                        break
                    ask_at = max(ask_at, self.clock() + DRAIN_CHECK)
                    pause = min(pause, DRAIN_CHECK)
                if pause > 0:
                    self._awake.wait(pause)
                self._awake.clear()
        finally:
            self.close()

    def anything_due(self) -> bool:
        """Ask the tables whether there is anything to do now for any of its groups."""
        return any(anything_due(self.alias, *subscription.place) for subscription in self.subscriptions)

    def _guarded_turn(self) -> float:
        try:
            return self.turn()
        except Error as error:
            fault = faults.classify(error)
            if fault is faults.Fault.OTHER:
                raise  # what was decided may not have been written: only a fresh start is safe
            logger.warning("event=turn_failed fault=%s error=%r", fault.name, error)
            faults.drop_connection(self.alias)
            return 0.5 if fault is not faults.Fault.CONTENTION else 0.05

    def close(self) -> None:
        """End gracefully: wait for what runs, settle, hand back the rest, release the leases, remove the heartbeat."""
        self.stop()
        try:
            self._wind_down()
            self._release_all()
        finally:
            self._stop_listening()
            if self._doorbell is not None:
                self._doorbell.close()
            for resident in self._residents:
                resident.stop()
            if self._pool is not None:
                self._pool.close()
        faults.patiently(self.alias, heartbeat.leave, self.alias, self.name, give_up=self._out_of_time)
        announce(subscriber_stopped, Subscriber, subscriber=self.name)
        if self._with_residents:
            connections.close_all()

    def _out_of_time(self) -> bool:
        return self.clock() >= self._deadline_of_stop

    def _wind_down(self) -> None:
        for run in list(self._runs):
            self._take_back(run)
        while self._outstanding and not self._out_of_time():
            self._guarded_turn()
            self._awake.wait(0.02)
            self._awake.clear()

    def _take_back(self, run: Run) -> None:
        for hand in run.stop():
            self._reports.append((hand, UNSTARTED))

    def _release_all(self) -> None:
        self._take_reports(self.clock())
        for subscription in self.subscriptions:
            self._release(subscription, subscription.holding)

    def _release(self, subscription: Subscription, partitions: set[int]) -> None:
        if not partitions:
            return
        now = self.clock()
        streams = [stream for partition in sorted(partitions) for stream in subscription.of_partition(partition)]
        plans = [stream.release_plan(now) for stream in streams]
        if self._execute(plans) is not None:
            faults.patiently(
                self.alias, self.ownership.release, subscription, partitions, give_up=lambda: self._out_of_time()
            )

    # -- reports from other threads -----------------------------------------------------------------------------------

    def _report(self, hand: Hand, outcome: Outcome) -> None:
        self._reports.append((hand, outcome))
        if self.throttle.low(len(self._reports)) or outcome.kind != outcomes.ACKED:
            self._awake.set()

    def _run_ended(self, run: Run) -> None:
        self._ended.append(run)

    def _ring(self) -> None:
        self._rung = True
        self._awake.set()

    # -- one round ----------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Nothing is in hand, and nothing that was read waits for a turn."""
        return not self._outstanding and not self._reports and all(s.settled_up for s in self.ownership.streams())

    def turn(self) -> float:
        """Take in what happened, read, hand out, settle; return how many seconds it may sleep."""
        now = self.clock()
        worked = self._take_reports(now)
        while self._lost:
            self.ownership.lose(self._lost.popleft())
        if now >= self._balance_at and not self._stopping:
            self._balance(now)
        streams = self.ownership.streams()
        read = 0
        if not self._stopping:
            news = self._look(streams, now)
            read = self.reader.read(self._readable(streams))
            worked = worked or news or read > 0
            self._load_due(streams, now)
        if now >= self._overruns_at:
            self._end_overruns(now)
        worked = self._settle(streams, now) or worked
        self._give_up_drained()
        self._pause = settings.POLL_INTERVAL if worked else min(self._pause * 2, settings.IDLE_POLL_INTERVAL)
        return self._sleep(streams, read > 0)

    def _take_reports(self, now: float) -> bool:
        """Take in the handlers' outcomes; the atomic ones may have moved a position themselves."""
        count = 0
        while self._reports:
            hand, outcome = self._reports.popleft()
            stream = hand.stream
            if stream.lost:
                if hand.outcome is None:
                    hand.outcome = outcome
                    self._settled_hand(hand)
                continue
            if outcome.moved_to is not None:
                stream.committed_to(outcome.moved_to)
            if stream.finish(hand, outcome, now):
                self._settled_hand(hand)
                count += 1
        while self._ended:
            self._forget_run(self._ended.popleft())
        self.throttle.finished(count, now)
        return count > 0

    def _forget_run(self, run: Run) -> None:
        self._runs.pop(run, None)
        if run.batch:
            self._in_company -= len(run.hands) - 1

    def _settled_hand(self, hand: Hand) -> None:
        self._outstanding = max(0, self._outstanding - 1)
        if hand.alone:
            self._alone = False

    def _balance(self, now: float) -> None:
        if self.ownership.balance(self.reader.horizon.value, self.clock):
            self._look_at = 0.0
        self._balance_at = self.clock() + settings.BALANCE_INTERVAL * max(1.0, len(self.subscriptions) / 2)

    def _look(self, streams: Sequence[Stream], now: float) -> bool:
        if now < self._look_at and not self._rung:
            return False
        self._rung = False
        news = self.reader.look(streams, now)
        if self.reader.scheduled:
            for resident in self._residents:
                if isinstance(resident, Scheduler):
                    resident.wake()
        self._look_at = now + self._pause
        return news

    def _readable(self, streams: Sequence[Stream]) -> list[Stream]:
        if not any(subscription.paused or subscription.leaving for subscription in self.subscriptions):
            return list(streams)
        return [stream for stream in streams if self._hands_out(stream)]

    def _hands_out(self, stream: Stream) -> bool:
        subscription = self._subscription(stream)
        return not subscription.paused and stream.address.partition not in subscription.leaving

    def _subscription(self, stream: Stream) -> Subscription:
        place = stream.address.group, stream.address.topic
        return self._by_place[place]

    def _load_due(self, streams: Sequence[Stream], now: float) -> None:
        for stream in streams:
            offsets = stream.due_rows(now, stream.manners.batch_size)
            if offsets:
                self.reader.load(stream, offsets, now)

    # -- settling and handing out -------------------------------------------------------------------------------------

    def _settle(self, streams: Sequence[Stream], now: float) -> bool:
        """Write the outcomes and the next claims of all streams in one transaction; then start what was claimed."""
        chosen = self._choose(streams, now)
        plans: list[Plan] = []
        for stream in streams:
            runs = chosen.get(stream, [])
            if runs or stream.active:
                plan = stream.plan(now, settings.FLUSH_INTERVAL, runs)
                if plan is not None:
                    plans.append(plan)
        if not plans:
            return False
        lost = self._execute(plans)
        if lost is None:
            return False
        for plan in plans:
            if plan in lost:
                continue
            address = plan.stream.address
            self.settled += len(plan.settled)
            self._announce(plan)
            for run in plan.runs:
                subscription = self._by_place[address.group, address.topic]
                self._runs[run] = subscription
                assert self._pool is not None
                self._pool.submit(subscription.handling, run)
        return True

    def _choose(self, streams: Sequence[Stream], now: float) -> dict[Stream, list[Run]]:
        """Decide whom to hand out. A suspect goes alone: nothing else in hand in the whole process until it is settled."""
        if self._stopping or self._alone:
            return {}
        suspicious = [stream for stream in streams if stream.has_suspects and self._hands_out(stream)]
        for stream in suspicious:
            offset = stream.suspect()
            if offset is None:
                continue
            if self._outstanding:
                return {}
            self.reader.load(stream, [offset], now)
            runs = stream.choose_alone(offset, now)
            if runs:
                self._alone = True
                self._outstanding += 1
                self.throttle.handed(self._outstanding)
                return {stream: runs}
        chosen: dict[Stream, list[Run]] = {}
        room = self.throttle.room(self._outstanding - self._in_company)
        for stream in self.throttle.in_turn(streams):
            if room <= 0:
                break
            if not stream.has_turns or not self._hands_out(stream) or now >= stream.deadline:
                continue
            runs = stream.choose(min(room, stream.manners.batch_size))
            if runs:
                chosen[stream] = runs
                handed = sum(len(run.hands) for run in runs)
                self._outstanding += handed
                self._in_company += handed - len(runs) if stream.manners.batch else 0
                room -= len(runs) if stream.manners.batch else handed
        self.throttle.handed(self._outstanding)
        return chosen

    def _execute(self, plans: list[Plan]) -> list[Plan] | None:
        """Settle, through lost connections too: what was decided is written, or its stream is lost. None: time is up."""
        histories = {subscription.consumer.topic: subscription.history for subscription in self.subscriptions}
        lost = faults.patiently(
            self.alias,
            settle,
            self.alias,
            plans,
            self.name,
            histories,
            self.clock(),
            give_up=lambda: self._stopping and self._out_of_time(),
        )
        if lost is None:
            for plan in plans:
                plan.stream.lost = True
            return None
        if lost:
            self._lose([plan.stream for plan in lost])
            for plan in lost:
                self._outstanding -= sum(len(run.hands) for run in plan.runs)
                self._in_company -= sum(len(run.hands) - 1 for run in plan.runs if run.batch)
                self._alone = self._alone and not any(hand.alone for run in plan.runs for hand in run.hands)
        return lost

    def _lose(self, streams: list[Stream]) -> None:
        self.ownership.lose(streams)
        for run in [run for run in self._runs if run.stream.lost]:
            self._take_back(run)

    def _announce(self, plan: Plan) -> None:
        address = plan.stream.address
        place = {"group": address.group, "topic": address.topic, "partition": address.partition}
        for hand in plan.settled:
            assert hand.outcome is not None
            outcome = hand.outcome
            failed = outcome.kind == outcomes.RETRIED
            if not failed and not delivery_settled.receivers:
                continue
            facts = {
                **place,
                "offset": hand.offset,
                "attempt": hand.attempt,
                "outcome": outcome.kind,
                "seconds": hand.finished - hand.started,
                "error": outcome.error,
            }
            announce(delivery_settled, Subscriber, **facts)
            if failed:
                announce(delivery_failed, Subscriber, **facts)
        for letter in plan.dead:
            announce(
                dead_lettered,
                Subscriber,
                **place,
                offset=letter.message.offset,
                attempt=letter.attempts,
                error=letter.error,
            )

    # -- what takes too long ------------------------------------------------------------------------------------------

    def _end_overruns(self, now: float) -> None:
        """End the hands whose visibility timeout has passed: their handlers may go on, but their outcomes are void."""
        self._overruns_at = now + OVERRUN_CHECK
        for run, subscription in list(self._runs.items()):
            late = [
                hand
                for hand in run.hands
                if hand.started and not hand.finished and hand.outcome is None and now >= hand.deadline
            ]
            if not late or run.stream.lost:
                continue
            self._take_back(run)
            consumer = subscription.consumer
            for hand in late:
                error = VisibilityTimeout(f"still running after its visibility timeout, at attempt {hand.attempt}")
                outcome = outcomes.decide(error, hand.attempt, consumer.manners.max_attempts, consumer.backoff)
                if run.stream.finish(hand, outcome, now):
                    self._settled_hand(hand)
            assert self._pool is not None
            self._pool.abandon(run)
            if self._pool.exhausted:
                logger.error("event=pool_exhausted subscriber=%s: too many handlers hang; stopping", self.name)
                self.stop()

    # -- leaving partitions -------------------------------------------------------------------------------------------

    def _give_up_drained(self) -> None:
        if self._stopping:
            return
        for subscription, partition in self.ownership.drained():
            self._release(subscription, {partition})

    # -- sleeping -----------------------------------------------------------------------------------------------------

    def _sleep(self, streams: Sequence[Stream], read: bool) -> float:
        """Return how long nothing needs this thread: until a report, a ring, a due row, the next look or balance."""
        if self._reports or self._lost or self._rung:
            return 0.0
        now = self.clock()
        if read and not self._outstanding and any(stream.has_turns for stream in streams):
            return 0.0
        pause = self._pause
        for stream in self._readable(streams):
            due = stream.next_due()
            if due is not None:
                pause = min(pause, due - now)
            if stream.window.more and stream.room:
                return 0.0
        return max(0.0, min(pause, self._balance_at - now))
