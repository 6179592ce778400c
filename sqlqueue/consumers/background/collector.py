"""The collector: deletes what every group has acked, and clears up after subscribers that died."""

from __future__ import annotations

from sqlqueue.consumers.background.task import BackgroundTask
from sqlqueue.core.effects import registered
from sqlqueue.database import retries
from sqlqueue.database.horizon import Horizon, highest_offset
from sqlqueue.database.log import Log
from sqlqueue.database.server_identity import ServerChanged, ServerIdentity, SessionReplaced
from sqlqueue.leases import heartbeat, release
from sqlqueue.log import duties, unique
from sqlqueue.log.collect import collect, report_absent
from sqlqueue.log.layout_changes import Progress
from sqlqueue.operations.repartition import Repartition


class CollectorTask(BackgroundTask):
    """Carries on the change of a topic's partitions, collects, deletes what is known of unique messages that are
    settled, lets effects sweep, reports groups that are away, deletes heartbeats of dead subscribers, and shortens
    stale leases. One process of all does it, about every interval."""

    name = "collector"

    def __init__(self, log: Log, interval: float, lease_duration: float):
        super().__init__(log, interval)
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
        if not self._more and not duties.begin(self.log, duties.COLLECT, self.interval / 2):
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
