"""A thread that renews a subscriber's heartbeat and leases until it is stopped.

It is told what to do about the database's errors: `insist` (archiving) or `skip` (streams).
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from django.db import Error, connections

from sqlqueue.database import retries
from sqlqueue.leases.renewal import Renewal, Renewed

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
