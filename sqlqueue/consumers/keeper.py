"""The keeper: keeps a process's heartbeat and leases alive, as long as its loop turns."""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable

from django.db import Error

from sqlqueue.consumers.ownership import Ownership
from sqlqueue.consumers.residents import Resident
from sqlqueue.core.lines import line
from sqlqueue.core.stream import Stream
from sqlqueue.database import clock
from sqlqueue.leases import heartbeat, hold
from sqlqueue.signals import announce, database_unreachable, settled_together

logger = logging.getLogger("sqlqueue")

FRAMES = 8  # of a stack that is shown


class Keeper(Resident):
    """Keeps the heartbeat and the leases alive. A thread of its own, so that no lock wait elsewhere lets them expire.

    On behalf of a loop that turns: one that has not turned for a lease's duration loses them, so that another process
    serves its partitions after twice that time at most. When it turns again, it finds out what it has lost.
    """

    name = "keeper"

    def __init__(
        self,
        ownership: Ownership,
        interval: float,
        address: str,
        activity: Callable[[], str],
        horizon: Callable[[], int],
        lost: Callable[[list[Stream]], None],
        kept: Callable[[], None] = lambda: None,
        hung_for: Callable[[], float] = lambda: 0.0,
        failing: Callable[[], str] = lambda: "",
    ):
        super().__init__(ownership.alias, interval)
        self.ownership, self.address, self.lost, self.kept = ownership, address, lost, kept
        self.activity, self.horizon, self.hung_for, self.failing_tasks = activity, horizon, hung_for, failing
        self._loop = threading.get_ident()  # the thread that starts it
        self._told = False

    def beat(self) -> None:
        """Say that this process is alive, and what it does."""
        own = self.ownership
        if settled_together.receivers:
            clock.look(self.alias)
        places = [subscription.place for subscription in own.subscriptions]
        told = (self.address, self.activity(), self.horizon(), self.failing_tasks())
        heartbeat.beat(self.alias, own.subscriber, places, own.lease_duration, *told)

    def turn(self) -> bool:
        """Beat, renew all leases in one statement, and find out which are lost: by their tokens, for others may be held
        that are not known here."""
        if self._hangs():
            return False
        own = self.ownership
        try:
            self.beat()
            owned = own.tokens()
            began = time.monotonic()
            hold.renew(self.alias, own.subscriber, own.lease_duration)
            tokens = hold.held(self.alias, own.subscriber)
        except Error as error:
            announce(database_unreachable, Keeper, subscriber=own.subscriber, error=error)
            raise
        lost: list[Stream] = []
        for place, streams in owned.items():
            if tokens.get(place) != streams[0].token:
                lost += streams
                continue
            for stream in streams:
                stream.deadline = began + own.lease_duration
        if lost:
            self.lost(lost)
        self.kept()
        return False

    def _hangs(self) -> bool:
        """Tell whether the loop hangs; say so once, and where."""
        seconds = self.hung_for()
        hangs = seconds > self.ownership.lease_duration
        if hangs and not self._told:
            facts = {
                "subscriber": self.ownership.subscriber,
                "seconds": seconds,
                "meaning": "its leases are left to expire",
            }
            logger.error(line("loop_hangs", **facts, at=_where(self._loop)))
        self._told = hangs
        return hangs


def _where(thread: int) -> str:
    """Return where a thread is now, the innermost call first."""
    frame = sys._current_frames().get(thread)
    calls = [] if frame is None else traceback.extract_stack(frame)[::-1]
    return " < ".join(f"{call.filename}:{call.lineno} {call.name}" for call in calls[:FRAMES])
