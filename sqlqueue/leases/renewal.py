"""Renewal of a subscriber's heartbeat and leases, and a thread that renews them until it is stopped.

A RenewalLoop is told what to do about the database's errors: `insist` (archiving) or `skip` (Spark streams). A consumer
process calls its Renewal from a background task, whose error boundary reports the error and goes on at the next
iteration.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import NamedTuple

from django.db import Error, connections

from sqlqueue.core.logfmt import logfmt
from sqlqueue.core.partition.ref import GroupTopic
from sqlqueue.database import retries
from sqlqueue.database.lock_timeouts import TableLocked
from sqlqueue.database.log import Log
from sqlqueue.database.server_identity import ServerIdentity
from sqlqueue.leases import heartbeat, release, withdrawal
from sqlqueue.leases.heartbeat import Work

logger = logging.getLogger("sqlqueue")


class Shown(NamedTuple):
    """What a heartbeat shows beside the subscriber's name; see heartbeat.beat."""

    address: str = ""
    activity: str = ""
    horizon: int = 0
    failing: str = ""
    partitions: str = ""
    work: Mapping[tuple[str, str], Work] = MappingProxyType({})


class Renewed(NamedTuple):
    """leases: how many the subscriber still has; began: the process's monotonic seconds from which their new duration
    counts, at the earliest."""

    leases: int
    began: float


class Renewal:
    """A subscriber's heartbeat and leases, to be renewed for `lease_duration` seconds each time.

    subscriptions: its (group, topic); show: returns what its heartbeat shows.
    """

    def __init__(
        self,
        log: Log,
        subscriber: str,
        subscriptions: Sequence[tuple[str, str]],
        lease_duration: float,
        show: Callable[[], Shown] = Shown,
    ):
        self.log, self.subscriber, self.subscriptions = log, subscriber, subscriptions
        self.lease_duration, self.show = lease_duration, show

    def beat(self, withdrawn: Set[GroupTopic] = frozenset()) -> None:
        """Write the heartbeat, in all (group, topic) but those that the subscriber has withdrawn from. While another
        session has locked its table it is left out: leases are renewed without, and as long as they are nothing is
        taken over."""
        shown = self.show()
        try:
            heartbeat.beat(
                self.log,
                self.subscriber,
                [each for each in self.subscriptions if each not in withdrawn],
                self.lease_duration,
                **shown._asdict(),
            )
            if withdrawn:
                withdrawal.stay_away(self.log, self.subscriber, withdrawn)
        except TableLocked as error:
            logger.warning(logfmt("heartbeat_left_out", subscriber=self.subscriber, error=error))

    def prolong(self, server: ServerIdentity | None = None) -> Renewed:
        """Prolong all leases; on this server, see release.renew."""
        began = time.monotonic()
        return Renewed(release.renew(self.log, self.subscriber, self.lease_duration, server), began)

    def renew(self) -> Renewed:
        """Do both, on a connection that lives. May be run twice."""
        retries.close_lost_connections()
        self.beat()
        return self.prolong()


# Calls renew() and handles the database's errors; returns None if nothing was renewed. Its second argument tells
# whether the loop has been stopped.
OnError = Callable[[Renewal, Callable[[], bool]], "Renewed | None"]


def insist(renewal: Renewal, stopped: Callable[[], bool]) -> Renewed | None:
    """Try again through every error that may pass until it succeeds, or the loop ends. One that is for good ends the
    loop: the leases expire, and the next fenced statement of their owner raises LeaseLost."""
    return retries.patiently(renewal.log, renewal.renew, give_up=stopped)


def skip(report: Callable[[Error], None]) -> OnError:
    """Return what reports any error, and tries again at the next interval only: an owner whose leases have expired
    finds out at its next fenced statement."""

    def reported(renewal: Renewal, stopped: Callable[[], bool]) -> Renewed | None:
        try:
            return renewal.renew()
        except Error as error:
            report(error)
            return None

    return reported


class RenewalLoop:
    """Renews every `interval` seconds, in a thread of its own, so that no other work lets the leases expire.

    on_error: `insist`, or `skip(report)`; renewed: called after each renewal, in that thread.
    """

    def __init__(
        self,
        renewal: Renewal,
        interval: float,
        on_error: OnError,
        renewed: Callable[[Renewed], None] = lambda renewed: None,
    ):
        self.renewal, self.interval = renewal, interval
        self._on_error, self._renewed = on_error, renewed
        self._stopped, self._at_once = threading.Event(), True
        self._thread = threading.Thread(target=self._run, name="sqlqueue-renewal", daemon=True)

    def start(self, *, at_once: bool = True) -> None:
        """Begin; at_once: with a renewal, else with an interval."""
        self._at_once = at_once
        self._thread.start()

    def stop(self, timeout: float | None = None) -> None:
        """End after the present renewal; wait for that, at most `timeout` seconds."""
        self._stopped.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        try:
            ended = False if self._at_once else self._stopped.wait(self.interval)
            while not ended:
                renewed = self._on_error(self.renewal, self._stopped.is_set)
                if renewed is not None:
                    self._renewed(renewed)
                ended = self._stopped.wait(self.interval)
        finally:
            connections.close_all()
