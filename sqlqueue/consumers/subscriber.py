"""The subscriber: one process's loop. It knows only turn, delay and stop; what a turn does is somebody else's verb."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from django.db import Error, connections

from sqlqueue.conf import settings
from sqlqueue.consumers.connections import CONNECTIONS_LAST
from sqlqueue.consumers.dispatcher import Dispatcher
from sqlqueue.consumers.keeper import Keeper
from sqlqueue.consumers.ownership import Ownership
from sqlqueue.consumers.pool import Pool, ThreadPool
from sqlqueue.consumers.pulse import Pulse
from sqlqueue.consumers.reader import Reader
from sqlqueue.consumers.reading_limits import ReadingLimits
from sqlqueue.consumers.recorder import Recorder
from sqlqueue.consumers.registration import Registration
from sqlqueue.consumers.registry import Consumer
from sqlqueue.consumers.residents import Collector, Replayer, Resident, Scheduler
from sqlqueue.consumers.subscription import Subscription
from sqlqueue.core.lines import line
from sqlqueue.core.outcomes import Outcome
from sqlqueue.core.plan import Hand, Run
from sqlqueue.core.stream import Stream
from sqlqueue.database import faults, patience
from sqlqueue.database.incarnation import ServerChanged
from sqlqueue.database.transactions import refusal
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.leases import heartbeat
from sqlqueue.log import bell
from sqlqueue.log.status import anything_due, anything_scheduled
from sqlqueue.signals import announce, subscriber_started, subscriber_stopped, verb_failed

logger = logging.getLogger("sqlqueue")

RELEASED_AT_ONCE = 200  # partitions; more if a single group has more
FIRST_PATIENCE = 0.5  # seconds for which a start waits for the horizon; what is left is done between two turns
REGISTER_CHECK = 0.1  # seconds between two looks whether that is possible
OPTIONS_CHECK = 0.8  # seconds between two looks at what is paused: nothing starts a second after a pause
DRAIN_CHECK = 0.2  # seconds between two looks at whether anything is due


class Subscriber:
    """Hosts consumers: owns partitions, reads, hands out, settles. `turn` is one round; `run` goes on until `stop`."""

    def __init__(
        self,
        consumers: Sequence[Consumer],
        *,
        name: str = "",
        threads: int | None = None,
        pool: Callable[[Callable[[Hand, Outcome], None], Callable[[Run], None]], Pool] | None = None,
        residents: bool = True,
        pulse: Pulse | None = None,
    ):
        self.alias: str = settings.DATABASE
        self.name = name or heartbeat.subscriber_name()
        self.clock = time.monotonic
        self.pulse = pulse or Pulse()
        self.subscriptions = [Subscription(self.alias, consumer) for consumer in consumers]
        self.ownership = Ownership(self.alias, self.name, self.subscriptions, settings.LEASE_DURATION)
        self.ownership.progress = self.pulse.turned
        self.reader = Reader(self.alias)
        self._limits = ReadingLimits()
        self._registration = Registration(self.alias, self.subscriptions)
        self._awake = threading.Event()
        threads = threads or settings.THREADS
        make_pool = pool or (lambda report, ended: ThreadPool(threads, report, ended))
        self.dispatcher = Dispatcher(
            self.ownership,
            self.reader,
            threads,
            make_pool,
            awake=self._awake.set,
            give_up=self._give_up,
        )
        self.stopping = False
        self.failed = False  # it ends, and has not done what it was to do
        self._stop_deadline = 0.0
        self._rung = False
        self._lost: deque[list[Stream]] = deque()
        self._with_residents = residents
        self._residents: list[Resident] = []
        self._scheduler: Scheduler | None = None
        self._doorbell: bell.Doorbell | None = None
        self._stop_listening: Callable[[], None] = lambda: None
        self._pause: float = settings.POLL_INTERVAL
        self._scheduled_at = math.inf
        self._look_at = self._balance_at = self._options_at = self._notice_at = self._register_at = 0.0

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Register the groups, show a heartbeat, start the residents."""
        if why := refusal(connections[self.alias]):
            raise ConfigurationError(f"a consumer cannot run {why}")
        self._registration.start()
        give_up_at = self.clock() + FIRST_PATIENCE
        while not self._registration.go_on(self.reader.horizon) and not self._registration.complete:
            if self.stopping or self.clock() > give_up_at:
                self._registration.say()
                break
            time.sleep(0.01)
        self._stop_listening = bell.listen(self._ring)
        address = ""
        if self._with_residents and settings.WAKE:
            self._doorbell = bell.Doorbell(settings.WAKE_ADDRESS, self._ring)
            address = self._doorbell.address
        self._keeper = Keeper(
            self.ownership,
            settings.HEARTBEAT_INTERVAL,
            address,
            self.activity,
            lambda: self.reader.horizon.value,
            self._lost.append,
            self.pulse.kept,
            lambda: self.pulse.hung_for,
            self.failing,
        )
        self._keeper.beat()
        self._keep_at = self.clock() + settings.HEARTBEAT_INTERVAL
        if self._with_residents:
            self._scheduler = Scheduler(self.alias, settings.IDLE_POLL_INTERVAL * 5)
            collector = Collector(self.alias, settings.COLLECT_INTERVAL, settings.LEASE_DURATION)
            recorder, replayer = Recorder(self.alias, self.dispatcher.tally), Replayer(self.alias)
            self._residents = [self._keeper, self._scheduler, collector, recorder, replayer]
            for resident in self._residents:
                resident.start()
        places = [subscription.place for subscription in self.subscriptions]
        self.pulse.started()
        announce(subscriber_started, Subscriber, subscriber=self.name, subscriptions=places)

    def stop(self, timeout: float | None = None) -> None:
        """Ask for a graceful end: nothing new starts, and what runs has `timeout` seconds (SHUTDOWN_TIMEOUT) to end."""
        self.stop_soon(timeout)
        self._awake.set()

    def stop_soon(self, timeout: float | None = None) -> None:
        """The same for a signal handler, which may not take a lock: the loop notices when it next wakes."""
        if not self.stopping:
            self._stop_deadline = self.clock() + (settings.SHUTDOWN_TIMEOUT if timeout is None else timeout)
            self.stopping = True
            self.pulse.stopping()

    def keep(self) -> None:
        """Keep the heartbeat and the leases alive, when it is time: for a host without residents, between two turns."""
        self.pulse.turned()
        if self.clock() >= self._keep_at:
            self._keeper.turn()
            self._keep_at = self.clock() + settings.HEARTBEAT_INTERVAL

    def activity(self) -> str:
        """Return in a few words what it does now."""
        return f"{self.dispatcher.outstanding} in hand of {len(self.ownership.tokens())} partitions"

    def failing(self) -> str:
        """Return which of its background tasks fail again and again, and of what; "" for none."""
        return "; ".join(resident.failing for resident in self._residents if resident.failing)

    def run(
        self,
        drain: bool = False,
        alive: Callable[[], bool] = lambda: True,
        started: Callable[[], None] = lambda: None,
    ) -> None:
        """Go on until `stop`; with `drain`, until everything due has been settled; or until `alive` says no.

        A database that is away is waited for. Every exit but a second signal releases the leases.
        """
        with patience.limited(self.alias):
            ask_at = 0.0
            self.start()
            try:
                started()
                while not self.stopping and alive():
                    pause = self._guarded_turn()
                    if drain and self.idle:
                        if self.clock() >= ask_at:
                            if not self.anything_due():
                                break
                            ask_at = self.clock() + DRAIN_CHECK
                        pause = min(pause, DRAIN_CHECK)
                    if pause > 0:
                        self._awake.wait(pause)
                    self._awake.clear()
                    if pause >= CONNECTIONS_LAST and faults.close_lost_connections():
                        self.dispatcher.server.doubtful = True
            finally:
                self.close()

    @property
    def settled(self) -> int:
        """How many deliveries it has settled so far."""
        return self.dispatcher.settled

    @property
    def idle(self) -> bool:
        """Nothing is in hand, and nothing that was read could be handed out now."""
        if self.dispatcher.outstanding or self.dispatcher.reported or not self._registration.complete:
            return False
        now = self.clock()
        active = (subscription for subscription in self.subscriptions if not subscription.paused)
        return all(
            stream.settled_up and ((due := stream.next_due()) is None or due > now)
            for subscription in active
            for stream in subscription.streams.values()
        )

    def anything_due(self) -> bool:
        """Ask the tables whether there is anything to do now for any of its groups; what is paused is not.

        The schedule before the log: a message moves from there to here, and may do so between two looks.
        """
        active = [subscription for subscription in self.subscriptions if not subscription.paused]
        return anything_scheduled(self.alias, {subscription.consumer.topic for subscription in active}) or any(
            self.reader.unread(list(subscription.streams.values()))
            or anything_due(
                self.alias, *subscription.place, subscription.consumer.manners.ordering, set(subscription.streams)
            )
            for subscription in active
        )

    def close(self) -> None:
        """End gracefully: wait for what runs, settle, hand back the rest, release the leases, remove the heartbeat."""
        self.stop()
        try:
            self._wind_down()
            self.dispatcher.take_reports(self.clock())
            self._release({each: each.holding for each in self.subscriptions if each.holding})
        finally:
            self._stop_listening()
            if self._doorbell is not None:
                self._doorbell.close()
            for resident in self._residents:
                resident.stop()
            self.dispatcher.pool.close()
        faults.patiently(self.alias, heartbeat.leave, self.alias, self.name, give_up=self._out_of_time)
        announce(subscriber_stopped, Subscriber, subscriber=self.name)
        if self._with_residents:
            connections.close_all()

    def _give_up(self) -> bool:
        """Tell whether to stop insisting on a database that is away. A loop that insists does not hang."""
        self.pulse.turned()
        return self.stopping and self._out_of_time()

    def _out_of_time(self) -> bool:
        return self.clock() >= self._stop_deadline

    def _wind_down(self) -> None:
        self.dispatcher.take_back_all()
        while self.dispatcher.outstanding and not self._out_of_time():
            self._guarded_turn()
            self._awake.wait(0.02)
            self._awake.clear()

    def _release(self, partitions: Mapping[Subscription, set[int]]) -> None:
        """Settle these for the last time, and give them up, some in one transaction."""
        some: dict[Subscription, set[int]] = {}
        for subscription, numbers in partitions.items():
            some[subscription] = numbers
            if sum(map(len, some.values())) >= RELEASED_AT_ONCE:
                self._release_some(some)
                some = {}
        if some:
            self._release_some(some)

    def _release_some(self, partitions: Mapping[Subscription, set[int]]) -> None:
        now = self.clock()
        streams = [
            stream
            for subscription, numbers in partitions.items()
            for partition in sorted(numbers)
            for stream in subscription.of_partition(partition)
        ]
        try:
            settled = self.dispatcher.execute([stream.release_plan(now) for stream in streams])
        except ServerChanged:
            settled = []  # whoever takes the partitions recovers what was in hand
        if settled is not None:
            before = connections[self.alias].connection
            faults.patiently(self.alias, self.ownership.release, partitions, give_up=self._give_up)
            if connections[self.alias].connection is not before:
                self.dispatcher.server.doubtful = True

    # -- one round ----------------------------------------------------------------------------------------------------

    def _guarded_turn(self) -> float:
        self.pulse.turned()
        try:
            self.dispatcher.server.make_sure()
            return self.turn()
        except ServerChanged:
            self._start_over()
            return 0.0
        except Error as error:
            self.dispatcher.server.doubtful = True
            fault = faults.classify(error)
            if fault is faults.Fault.OTHER:
                raise  # what was decided may not have been written: only a fresh start is safe
            logger.warning(line("turn_failed", subscriber=self.name, fault=fault.name, error=error))
            announce(verb_failed, Subscriber, verb="turn", fault=fault.name, error=error)
            faults.drop_connection(self.alias)
            return 0.5 if fault is faults.Fault.GONE else 0.05

    def _start_over(self) -> None:
        """The database server was restarted: drop what is remembered of the log, and take the partitions over from this
        very process, as from a stranger. What its handlers still do is void."""
        logger.warning(line("server_changed", subscriber=self.name, meaning="taking the partitions anew"))
        self.dispatcher.lose(self.ownership.streams())
        self.reader.forget()
        self._registration.forget()
        self._look_at = self._balance_at = 0.0

    def turn(self) -> float:
        """Take in what happened, read, hand out, settle; return for how many seconds nothing needs this thread."""
        now = self.clock()
        worked = self.dispatcher.take_reports(now)
        while self._lost:
            self.dispatcher.lose(self._lost.popleft())
        if not self._registration.complete and now >= self._register_at and not self.stopping:
            self._register_at = now + REGISTER_CHECK
            if self._registration.go_on(self.reader.horizon):
                self._balance_at = 0.0
        if now >= min(self._balance_at, self._options_at) and not self.stopping:
            if now >= self._balance_at:
                self._balance()
            else:
                self.ownership.refresh()
            self.dispatcher.take_back_paused()
            self._options_at = now + OPTIONS_CHECK
        streams = self.ownership.streams()
        if not self.stopping:
            worked = self._read(streams, now) or worked
        if not self.dispatcher.end_overruns(now):
            logger.error(line("pool_exhausted", subscriber=self.name, meaning="too many handlers hang"))
            self.failed = True
            self.stop()
        worked = self.dispatcher.advance(streams, now, hand_out=not self.stopping) or worked
        if not self.stopping:
            self._release(self.ownership.drained())
        self._pause = settings.POLL_INTERVAL if worked else min(self._pause * 2, settings.IDLE_POLL_INTERVAL)
        return self._sleep(streams)

    def _ring(self) -> None:
        self._rung = True
        self._awake.set()

    def _balance(self) -> None:
        if self.ownership.balance(self.reader.horizon.value, self.clock):
            self._look_at = 0.0
        self._balance_at = self.clock() + settings.BALANCE_INTERVAL

    def _read(self, streams: Sequence[Stream], now: float) -> bool:
        """Look for news, fetch for whoever has room, load due rows; return whether there was anything."""
        news = False
        if now >= min(self._look_at, self._scheduled_at) or self._rung:
            self._rung = False
            news = self.reader.look(streams, now)
            self._look_at = now + self._pause
            self._scheduled_at = self._follow_schedule()
        if now >= self._notice_at:
            self._notice_at = now + settings.HEARTBEAT_INTERVAL
            self._limits.look(streams, self.reader.horizon.value, now)
            for subscription in self.subscriptions:
                if any(stream.next_due() is not None for stream in subscription.streams.values()) and (
                    self.reader.notice_changes(*subscription.place, subscription.streams, now)
                ):
                    self._notice_at = now  # there are more
        count = self.reader.read([stream for stream in streams if self.ownership.hands_out(stream)], now)
        for stream in streams:
            offsets = stream.due_rows(now, stream.manners.batch_size)
            if offsets:
                self.reader.load(stream, offsets, now)
        return news or count > 0

    def _follow_schedule(self) -> float:
        """Have what is due moved into the log; return when the next scheduled message is due."""
        due_in = self.reader.due_in
        if due_in is None or self._scheduler is None:
            return math.inf
        if due_in <= 0:
            self._scheduler.wake()
            return math.inf  # the next look tells whether there is more
        return self.clock() + due_in

    def _sleep(self, streams: Sequence[Stream]) -> float:
        """Return how long nothing needs this thread: until a report, a ring, a due row, the next look or balance."""
        if self.dispatcher.reported or self._lost or self._rung:
            return 0.0
        idle = not self.dispatcher.outstanding
        now = self.clock()
        pause = min(self._pause, self._balance_at - now, self._scheduled_at - now)
        for stream in streams:
            if not self.ownership.hands_out(stream):
                continue
            if self.reader.wants(stream) or (idle and stream.has_turns):
                return 0.0
            due = stream.next_due()
            if due is not None:
                pause = min(pause, due - now)
        return max(0.0, pause)
