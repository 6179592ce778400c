"""The duties of which one process of all does each at a time: collection, the ticks of periodic schedules, and the
survey of the backlogs, to which each process adds what it has settled; and telling effects what was committed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from sqlqueue.conf import settings
from sqlqueue.consumers.background.task import BackgroundTask
from sqlqueue.core import outcomes
from sqlqueue.core.effects import EffectWrite, by_effect, registered, with_header
from sqlqueue.core.periodic import ScheduleDefinition
from sqlqueue.core.settle_plan import SettleResult, count_kinds
from sqlqueue.database import retries
from sqlqueue.database.horizon import Horizon, highest_offset
from sqlqueue.database.log import Log
from sqlqueue.database.server_identity import ServerChanged, ServerIdentity, SessionReplaced
from sqlqueue.leases import heartbeat, release
from sqlqueue.log import unique
from sqlqueue.log.collect import collect, report_absent
from sqlqueue.log.declarations import declare
from sqlqueue.log.layout_changes import Progress
from sqlqueue.log.ticks import publish_due, retry_refused, seconds_to_next
from sqlqueue.models.publish_gate import COLLECT, SURVEY, begin_duty
from sqlqueue.operations.repartition import Repartition
from sqlqueue.stats.survey import survey
from sqlqueue.stats.throughput import SettledCounts, add, forget, has_backlogs, record_backlogs


class CollectorTask(BackgroundTask):
    """Carries on the change of a topic's partitions, collects, deletes what is known of unique messages that are
    settled, lets effects sweep, reports groups that are away, deletes heartbeats of dead subscribers, and shortens
    stale leases. One process of all does it, about every interval."""

    def __init__(self, log: Log, interval: float, lease_duration: float):
        super().__init__(log, "collector", interval)
        self._lease_duration = lease_duration
        self._horizon: Horizon | None = None
        self._more = False  # the last batch was not the end of it
        self._repartition = Repartition(log, stubborn=1)
        self._unique_beyond = ""  # where the purge of unique messages goes on

    def forget(self) -> None:
        """Forget the horizon: a restarted server may assign offsets again that were below it."""
        self._horizon = None

    def run_once(self) -> bool:
        """Collect one bounded batch, unless another process has begun to within half the interval; return whether there
        is more."""
        if not self._more and not begin_duty(self.log, COLLECT, self.interval / 2):
            return False
        self._more = False
        try:
            self._more = self._collect()
            return self._more
        except (ServerChanged, SessionReplaced):
            self.forget()
            retries.drop_connection(self.log)  # it may lead to a server of the past for as long as it lives
            return False

    def _collect(self) -> bool:
        if self._horizon is None:
            self._horizon = Horizon(self.log, ServerIdentity(self.log))
        self._carry_on()
        self._horizon.probe(highest_offset(self.log, self._horizon.server))
        collected = collect(self.log, self._horizon, stop=lambda: self._stopping)
        swept = [effect.sweep(self.log) for effect in registered()]
        report_absent(self.log)
        heartbeat.remove_dead(self.log, self._lease_duration)
        release.shorten_stale(self.log, self._lease_duration)
        purged = unique.purge(self.log, self._unique_beyond, stop=lambda: self._stopping)
        self._unique_beyond = purged.beyond
        more = collected.more or bool(purged.rows and purged.beyond)
        return more or any(swept)

    def _carry_on(self) -> None:
        """Go on with a change of a topic's partitions that another process has left, for as long as steps succeed. One
        statement if there is none."""
        left: Progress | None = None
        while not self._stopping and (now := self._repartition.step()) is not None and now != left:
            left = now


TICKS_INTERVAL = 2.0  # seconds after which another process's changes are noticed
AGAIN = 0.05  # seconds until the next iteration while another process publishes what is due


class PeriodicTask(BackgroundTask):
    """Declares this process's schedules, renews them, and publishes what is due: of all processes the first one that
    comes. It wakes when the next tick is due. An idle iteration is one statement."""

    def __init__(self, log: Log, declared: Mapping[str, ScheduleDefinition]):
        super().__init__(log, "periodic", TICKS_INTERVAL)
        self._declared = declared
        self._digests = {name: definition.digest for name, definition in declared.items()}
        self._declare_at = 0.0  # by the monotonic clock

    def run_once(self) -> bool:
        """Publish one batch; return whether there is more."""
        # If the database is away; schedules that are due often would try again all the time.
        self.interval = TICKS_INTERVAL
        error = None  # for which a tick waits
        if time.monotonic() >= self._declare_at:
            ticks = publish_due(self.log, self._digests)  # what was missed, or follows the definition before this one
            if ticks.more:
                return True
            error = ticks.error
            retry_refused(self.log, self._digests)
            if declare(self.log, self._declared):
                self._declare_at = time.monotonic() + settings.HEARTBEAT_INTERVAL
        seconds = seconds_to_next(self.log)
        if seconds is not None and seconds <= 0:
            ticks = publish_due(self.log, self._digests)
            seconds = None if ticks.more else seconds_to_next(self.log)
            if ticks.more:
                return True
            error = ticks.error
        self.interval = TICKS_INTERVAL if seconds is None else min(max(seconds, AGAIN), TICKS_INTERVAL)
        if error is not None:
            raise error
        return False


COUNTED = {outcomes.ACKED: 0, outcomes.RETRIED: 1, outcomes.POSTPONED: 2, outcomes.DEAD: 3}


class OutcomeCounter:
    """Counts outcomes by topic and group. The control thread adds, the stats recorder takes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], list[float]] = {}  # by (topic, group)

    def add(self, result: SettleResult) -> None:
        """Count the outcomes of a settle plan that was written."""
        ref = result.plan.lease.ref
        kinds = count_kinds(result.settled)
        seconds = sum([took for attempt, _ in result.settled if (took := attempt.finished - attempt.started) > 0])
        with self._lock:
            counts = self._counts.setdefault((ref.topic, ref.group), [0.0] * 6)
            counts[5] += result.plan.filtered
            counts[4] += seconds
            for kind, count in kinds.items():
                counts[COUNTED[kind]] += count

    def take(self) -> list[SettledCounts]:
        """Return the counts, and reset them."""
        with self._lock:
            counts, self._counts = self._counts, {}
        return [
            SettledCounts._make((*pair, *map(int, numbers[:4]), numbers[4], int(numbers[5])))
            for pair, numbers in counts.items()
        ]


STATS_INTERVAL = 10.0  # seconds
FORGET_EVERY = 100  # iterations
SURVEY_LASTS = 20.0  # seconds after which another process makes the survey of this minute


class StatsRecorder(BackgroundTask):
    """Records activity. Counts that could not be written are lost: nothing is decided by them."""

    def __init__(self, log: Log, outcome_counter: OutcomeCounter):
        super().__init__(log, "stats-recorder", STATS_INTERVAL)
        self.outcome_counter = outcome_counter
        self._iterations = 0

    def run_once(self) -> bool:
        """Add the counts, record the backlogs if no process has in this minute, and now and then delete old minutes."""
        self.finish()
        if not has_backlogs(self.log) and begin_duty(self.log, SURVEY, SURVEY_LASTS):
            record_backlogs(self.log, survey(self.log))
        if self._iterations % FORGET_EVERY == 0:
            forget(self.log)
        self._iterations += 1
        return False

    def finish(self) -> None:
        """Add the counts to the current minute."""
        if figures := self.outcome_counter.take():
            add(self.log, figures)


EFFECTS_INTERVAL = 2.0  # seconds between two calls without writes, while an effect waits for something
LOOK = 30.0  # seconds between two of them while none does
RESERVE = 5  # times as long a process in reserve waits
REST = 10  # times as long as a call has lasted the next one waits
MOST_REST = 0.2  # seconds that it waits at most to tell what was committed


class EffectTask(BackgroundTask):
    """Tells effects of messages what this process has written, right after the commit; and lets them look for
    themselves, for what comes with time, and for what another process was about to tell them when it was killed.

    in_reserve: tells whether another process serves the same, and looks more often: so what an idle fleet costs does
    not grow with the processes as fast as these.
    """

    def __init__(self, log: Log, in_reserve: Callable[[], bool]):
        super().__init__(log, "effects", EFFECTS_INTERVAL)
        self._in_reserve = in_reserve
        self._lock = threading.Lock()
        self._written: list[EffectWrite] = []
        self._busy = False
        self._due_at = 0.0  # when they are to look for themselves

    def tell_of(self, written: Sequence[EffectWrite]) -> None:
        """Let effects know of these writes. From any thread."""
        with self._lock:
            self._written += written
        self.wake()

    @property
    def idle(self) -> bool:
        """Whether effects know of all that was written."""
        with self._lock:
            return not (self._written or self._busy)

    def run_once(self) -> bool:
        """Tell effects what is new, and let them look if that is due."""
        began = time.monotonic()
        try:
            if self._tell():  # others are told together, which may be many
                self._stopped.wait(min(MOST_REST, REST * (time.monotonic() - began)))
            began = time.monotonic()
            if began >= self._due_at:
                self._due_at = began + EFFECTS_INTERVAL
                waits = [effect.committed(self.log, ()) for effect in with_header()]
                seldom = RESERVE if self._in_reserve() else 1
                ended = time.monotonic()
                self._due_at = ended + max(seldom * (EFFECTS_INTERVAL if any(waits) else LOOK), REST * (ended - began))
        finally:
            self.interval = max(0.0, self._due_at - time.monotonic())
        return False

    def finish(self) -> None:
        """Tell them what was written last."""
        self._tell()

    def _tell(self) -> bool:
        """Tell effects what is new; return whether there was anything."""
        with self._lock:
            written, self._written = self._written, []
            self._busy = bool(written)
        try:
            for effect, its in by_effect(written).items():
                if effect.committed(self.log, its):
                    self._due_at = min(self._due_at, time.monotonic() + EFFECTS_INTERVAL)
        except BaseException:
            self._due_at = min(self._due_at, time.monotonic() + EFFECTS_INTERVAL)
            with self._lock:
                self._written = written + self._written
            raise
        finally:
            self._busy = False
        return bool(written)
