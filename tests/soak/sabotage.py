"""Faults planted into the engine on purpose: a checker that does not find them is worth nothing.

The processes of a run commit what the environment's SOAK_SABOTAGE names; tests/soak/test_planted.py shows each found.
"""

import itertools
from typing import Any

from sqlqueue.consumers import dispatcher, handling
from sqlqueue.consumers.ownership import Ownership
from sqlqueue.core.stream import Stream
from sqlqueue.database.horizon import Horizon
from sqlqueue.leases import acquire, hold
from sqlqueue.log import atomic, settle

ENOUGH = 1_000_000  # leases that were renewed, as it is told


def fencing() -> None:
    """Let stale tokens pass, and consumers go on whose lease has ended: they never hear of it."""
    for module, names in ((settle, ("ADVANCE", "RELEASE", "POSITION")), (atomic, ("FENCE", "FENCE_ALONE", "MOVE"))):
        for name in names:
            setattr(module, name, getattr(module, name).replace("fencing_token = %s", "(fencing_token = %s OR 1 = 1)"))
    handling.Handling.started = lambda self, hands: True
    hold.renew = lambda alias, subscriber, lease_duration: ENOUGH


def horizon() -> None:
    """Take the highest visible offset for the horizon, as one would at first."""

    def probe(self: Horizon, highest: int) -> int:
        self.value = max(self.value, highest)
        return self.value

    Horizon.probe = probe


def order() -> None:
    """Forget that messages have keys and partitions."""
    Stream._lane_of = lambda self, key: None


def progress() -> None:
    """Own one partition of each topic, and never read it nor hand out of it."""
    real = Ownership.hands_out
    Ownership.hands_out = lambda self, stream: stream.address.partition != 0 and real(self, stream)


def settles() -> None:
    """Confirm settles that were never written, one in ten."""
    real, count = dispatcher.settle, itertools.count(1)

    def forget_some(*arguments: Any) -> Any:
        return [] if next(count) % 10 == 0 else real(*arguments)

    dispatcher.settle = forget_some


def leases() -> None:
    """Take leases whoever holds them, and go on with those that were taken."""
    acquire.LEASES = acquire.LEASES.replace("(holder = '' OR valid_until <= {now})", "{true}")
    acquire.TAKE = acquire.TAKE.replace("(holder = '' OR holder = %s OR", "(holder <> %s OR holder = '' OR")
    handling.Handling.started = lambda self, hands: True


def commit(name: str) -> None:
    """Plant one of workload.PLANTED, or nothing."""
    if name:
        {kind.__name__: kind for kind in (fencing, horizon, leases, order, progress, settles)}[name]()
