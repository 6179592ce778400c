"""A whole topic of a group owned by one subscriber: it takes all partitions together, and a thread renews its leases.

The thread is told what to do about the database's errors: `insist` (archiving) or `skip` (streams).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from django.db import Error, connections

from sqlqueue.conf import settings
from sqlqueue.database import retries
from sqlqueue.database.log import Log
from sqlqueue.database.server_identity import ServerIdentity
from sqlqueue.leases import release
from sqlqueue.leases.acquire import AcquiredPartition, acquire, not_taken
from sqlqueue.leases.renewal import Renewal, Renewed
from sqlqueue.log import groups, layouts

PAUSE = 0.2  # seconds between two attempts

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
