"""Faults planted into the engine on purpose: a checker that does not find them is worth nothing.

The processes of a run commit what the environment's SOAK_SABOTAGE names; tests/soak/test_planted.py shows each found.
"""

import itertools
import random
import sys
from typing import Any

from sqlqueue.consumers.engine import settler
from sqlqueue.consumers.engine.limiter import GroupLimiter
from sqlqueue.consumers.engine.ownership import Ownership
from sqlqueue.consumers.engine.reserved_threads import ReservedThreads
from sqlqueue.consumers.handlers import executor
from sqlqueue.contrib.batches import members
from sqlqueue.core.filters import Filter
from sqlqueue.core.partition.queues import OrderingQueues
from sqlqueue.core.settle_plan import Attempt, SettleResult
from sqlqueue.database.horizon import Horizon
from sqlqueue.database.log import Log
from sqlqueue.leases import acquire, release
from sqlqueue.log import fence, layout_changes, placement, results, schedule, ticks
from sqlqueue.operations.repartition import Repartition
from tests.soak.workload import NAMED

ENOUGH = 1_000_000  # leases that were renewed, as it is told
EARLY = 400  # offsets
EVERYWHERE = ("changes", "ends", "places")  # planted into every process: publishers, too, which have no handlers


def fencing() -> None:
    """Let stale tokens pass, and consumers go on whose lease has ended: they never hear of it."""
    fence.PREDICATE = fence.PREDICATE.replace("fencing_token = %s", "(fencing_token = %s OR 1 = 1)")
    fence.PREDICATE_OF_EACH = "1 = 1"
    executor.HandlerExecutor.started = lambda self, hands: True
    release.renew = lambda log, subscriber, lease_duration, server: ENOUGH


def horizon() -> None:
    """Take the highest visible offset for the horizon, as one would at first."""

    def probe(self: Horizon, highest: int) -> int:
        self.value = max(self.value, highest)
        return self.value

    Horizon.probe = probe


def order() -> None:
    """Forget that messages have keys and partitions."""
    OrderingQueues.queue_of = lambda self, key: None


def progress() -> None:
    """Own one partition of each topic, and never read it nor dispatch from it."""
    real = Ownership.may_dispatch
    Ownership.may_dispatch = lambda self, stream: stream.ref.partition != 0 and real(self, stream)


def settles() -> None:
    """Confirm settles that were never written, one in ten."""
    real, count = settler.settle, itertools.count(1)

    def forget_some(*arguments: Any) -> Any:
        if next(count) % 10 == 0:
            return [SettleResult(plan, plan.settled, plan.dead) for plan in arguments[1]]
        return real(*arguments)

    settler.settle = forget_some


def leases() -> None:
    """Take leases that other processes hold, and go on with those that were taken."""
    acquire.LEASES = acquire.LEASES.replace("(holder = '' OR valid_until <= {now})", "{true}")
    acquire.TAKE = acquire.TAKE.replace("(holder = '' OR holder = %s OR", "(holder <> %s OR holder = '' OR")
    executor.HandlerExecutor.started = lambda self, hands: True


def jobs() -> None:
    """Forget ticks, named messages that are due, results and replies, that messages expire, and the limits of groups;
    count a member of a batch again with each settle; let filters pass all that they are asked for."""
    due_ticks, insert_new = ticks.due_ticks, schedule.insert_new

    def forget_some(*arguments: Any) -> Any:
        due = due_ticks(*arguments)
        return due._replace(ticks=[tick for tick in due.ticks if tick.second % 5])

    def forget_named(log: Log, rows: Any) -> Any:
        return insert_new(log, [row for row in rows if row.topic != NAMED])

    ticks.due_ticks, schedule.insert_new = forget_some, forget_named
    results._insert = lambda log, rows: None
    Attempt.refused = None
    GroupLimiter.messages = GroupLimiter.executions = lambda self, now: sys.maxsize
    Filter.matches = lambda self, message: True
    settle_members = members.settle
    members.settle = lambda log, writes: settle_members(log, [each._replace(value=False) for each in writes])


def starving() -> None:
    """Reserve no threads, and leave no group to another process."""
    ReservedThreads.look = lambda self, assigned_partitions, now: None


def ends() -> None:
    """Read the end of an epoch too early: by what was published last before its end."""
    highest_offset = layout_changes.highest_offset
    layout_changes.highest_offset = lambda log: max(0, highest_offset(log) - EARLY)


def changes() -> None:
    """Carry on no change of partitions that was begun."""
    Repartition.step = lambda self: None


def places() -> None:
    """Publish a key to any database of its topic."""
    placement.database_of = lambda text, databases: random.choice(databases)


def commit(name: str) -> None:
    """Plant one of workload.PLANTED, or nothing."""
    kinds = (changes, ends, fencing, horizon, jobs, leases, order, places, progress, settles, starving)
    if name:
        {kind.__name__: kind for kind in kinds}[name]()
