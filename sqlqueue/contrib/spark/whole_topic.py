"""A whole topic of a group owned by one subscriber: it takes all partitions together; a thread renews its leases."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from django.db import Error, connections

from sqlqueue.conf import settings
from sqlqueue.core.partition.ref import GroupTopic
from sqlqueue.database import retries
from sqlqueue.database.log import Log
from sqlqueue.database.server_identity import ServerIdentity
from sqlqueue.leases import heartbeat, release
from sqlqueue.leases.acquire import AcquiredPartition, acquire, not_taken
from sqlqueue.leases.heartbeat import Shown
from sqlqueue.log import groups, layouts

PAUSE = 0.2  # seconds between two attempts
STOP_TIMEOUT = 10  # seconds to wait for the thread

Holders = Mapping[int, str]  # who has the partitions that were not taken, by number


def take_all(
    log: Log,
    name: str,
    group: str,
    topic: str,
    *,
    priorities: int,
    horizon: int,
    server: ServerIdentity,
    deadline: float,
    refused: Callable[[Holders], Exception],
    waiting: Callable[[Holders], None] = lambda holders: None,
) -> list[AcquiredPartition]:
    """Take all partitions of a topic, of every epoch together: their owner reads up to an offset whatever the epoch.

    deadline: monotonic seconds until which other owners are waited for. Raises what `refused` returns after it, and
    frees what was taken. waiting: called once if another subscriber has some.
    """
    groups.start_epochs(log, group, topic)
    wanted = sorted(layouts.numbers(log, topic))
    owned: dict[int, AcquiredPartition] = {}
    said = False
    while True:
        for taken in acquire(
            log,
            name,
            group,
            topic,
            wanted,
            priorities=priorities,
            lease_duration=settings.LEASE_DURATION,
            horizon=horizon,
            server=server,
            in_order=False,
        ):
            owned[taken.id] = taken
        others = not_taken(log, group, topic, owned.values())
        if not others:
            return list(owned.values())
        if time.monotonic() > deadline:
            release.free(log, name)
            raise refused(others)
        if not said:
            waiting(others)
            said = True
        wanted = sorted(others)
        time.sleep(PAUSE)


class RenewalLoop:
    """Renews a subscriber's heartbeat, in its (group, topic), and its leases, in a thread of its own, so that no other
    work lets them expire.

    interval, lease_duration: seconds; report: called with an error of the database, in that thread: the loop goes on,
    and an owner whose leases have expired finds out at its next fenced statement; renewed: called after each renewal
    with the number of leases that are left; activity: what the heartbeat shows.
    """

    def __init__(
        self,
        log: Log,
        subscriber: str,
        subscriptions: Sequence[GroupTopic],
        interval: float,
        lease_duration: float,
        report: Callable[[Error], None],
        renewed: Callable[[int], None] = lambda leases: None,
        activity: str = "",
    ):
        self.log, self.subscriber, self.subscriptions = log, subscriber, subscriptions
        self.interval, self.lease_duration = interval, lease_duration
        self._report, self._renewed, self._shown = report, renewed, Shown(activity=activity)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sqlqueue-renewal", daemon=True)

    def start(self) -> None:
        """Beat, and renew from the next interval on."""
        self._beat()
        self._thread.start()

    def stop(self) -> None:
        """End after the present renewal; wait for that, at most some seconds."""
        self._stopped.set()
        self._thread.join(STOP_TIMEOUT)

    def leave(self) -> None:
        """Stop, and release the leases, so that the next owner does not wait."""
        self.stop()
        retries.close_lost_connections()
        release.free(self.log, self.subscriber)
        heartbeat.leave(self.log, self.subscriber)

    def _run(self) -> None:
        try:
            while not self._stopped.wait(self.interval):
                try:
                    retries.close_lost_connections()
                    self._beat()
                    self._renewed(release.renew(self.log, self.subscriber, self.lease_duration))
                except Error as error:
                    self._report(error)
        finally:
            connections.close_all()

    def _beat(self) -> None:
        heartbeat.beat_unless_locked(self.log, self.subscriber, self.subscriptions, self.lease_duration, self._shown)
