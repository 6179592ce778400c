"""Renewal of a subscriber's heartbeat and leases.

A consumer process calls it from a background task, whose error boundary reports the error and goes on at the next
iteration; sqlqueue.contrib.spark from a RenewalLoop.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import NamedTuple

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
        shown = self.show()._asdict()
        served = [each for each in self.subscriptions if each not in withdrawn]
        try:
            heartbeat.beat(self.log, self.subscriber, served, self.lease_duration, **shown)
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
