"""The lease renewer: renews a process's heartbeat and leases while its loop runs."""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable

from django.db import Error

from sqlqueue.consumers.background.task import BackgroundTask
from sqlqueue.consumers.engine.ownership import Ownership
from sqlqueue.consumers.process.liveness import Liveness
from sqlqueue.core.logfmt import logfmt
from sqlqueue.core.partition.ref import GroupTopic, HeldLease
from sqlqueue.database import clock, retries
from sqlqueue.database.server_identity import NotNamedServer, ServerChanged, SessionReplaced
from sqlqueue.leases import release
from sqlqueue.leases.heartbeat import Shown, beat_unless_locked
from sqlqueue.signals import announce, database_unreachable, deliveries_settled

logger = logging.getLogger("sqlqueue")

FRAMES = 8  # of a stack that is logged


class LeaseRenewer(BackgroundTask):
    """Renews the heartbeat and the leases in a thread of its own, so that a lock wait elsewhere does not let them
    expire.

    It stops renewing when the loop has begun no iteration for the duration of a lease, so that another process serves
    the partitions after twice that time at most. When the loop runs again, it learns what was lost.
    """

    anywhere = True  # it looks itself

    def __init__(
        self,
        ownership: Ownership,
        interval: float,
        show: Callable[[], Shown],
        lost: Callable[[list[HeldLease]], None],
        liveness: Liveness,
    ):
        super().__init__(ownership.log, "lease-renewer", interval)
        self.ownership, self.lost, self.liveness = ownership, lost, liveness
        self._group_topics = [subscription.group_topic for subscription in ownership.subscriptions]
        self.show = show
        self._loop = threading.get_ident()  # the thread that starts it
        self._logged = False

    def beat(self) -> None:
        """Write the heartbeat, with what the process does."""
        if deliveries_settled.receivers:
            clock.look(self.log)
        own = self.ownership
        known: frozenset[GroupTopic] | None = None
        while known != own.withdrawn:  # the control thread writes it, and calls this as well
            known, shown = own.withdrawn, self.show()
            beat_unless_locked(self.log, own.subscriber, self._group_topics, own.lease_duration, shown, known)

    def run_once(self) -> bool:
        """Write the heartbeat, renew all leases, and find the lost ones by their tokens: the
        subscriber may hold leases that this process does not know. Raises NotNamedServer where this thread is known
        to be connected to another server."""
        if self._hangs():
            return False
        own = self.ownership
        try:
            own.server.proof()
        except NotNamedServer:
            raise  # a process that serves nothing there writes no heartbeat, so that no partitions are kept for it
        except (ServerChanged, SessionReplaced):
            pass  # the next statement that matters says so again
        try:
            self.beat()
            server, owned = own.server, own.leases()
            began = time.monotonic()
            release.renew(self.log, own.subscriber, own.lease_duration, server)
            tokens = release.held(self.log, own.subscriber, server)
        except (ServerChanged, SessionReplaced) as error:
            # The loop has been told, and looks at the server; this connection may lead to one of the past for good.
            logger.warning(logfmt("session_replaced", subscriber=own.subscriber, meaning=error))
            retries.drop_connection(self.log)
            return False
        except Error as error:
            announce(
                database_unreachable, LeaseRenewer, subscriber=own.subscriber, error=error, database=self.log.label
            )
            raise
        lost: list[HeldLease] = []
        for at, leases in owned.items():
            for lease in leases:
                if tokens.get(at) == lease.token:
                    lease.deadline = began + own.lease_duration
                else:
                    lost.append(lease)
        if lost:
            self.lost(lost)
        self.liveness.mark("renewal")
        return False

    def _hangs(self) -> bool:
        """Return whether the loop hangs; log it once, with its stack."""
        seconds = self.liveness.hung_for
        hangs = seconds > self.ownership.lease_duration
        if hangs and not self._logged:
            fields = {
                "subscriber": self.ownership.subscriber,
                "seconds": seconds,
                "meaning": "its leases are left to expire",
            }
            logger.error(logfmt("loop_hangs", **fields, at=_where(self._loop)))
        self._logged = hangs
        return hangs


def _where(thread: int) -> str:
    """Return the stack of a thread as one line, the innermost call first."""
    frame = sys._current_frames().get(thread)
    calls = [] if frame is None else traceback.extract_stack(frame)[::-1]
    return " < ".join(f"{call.filename}:{call.lineno} {call.name}" for call in calls[:FRAMES])
