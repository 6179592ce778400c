"""Counts of batches' members: written by the owner of each partition, in its settle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from sqlqueue.core.lease import HeldLease
from sqlqueue.core.settle_plan import SettlePlan
from sqlqueue.database.log import Log
from sqlqueue.database.sizes import insert_all

# How many members the database holds as settled by a partition. Index: the unique (batch, topic, group, partition,
# priority).
COUNTS = """
    SELECT batch, acked, dead FROM sqlqueue_batch_progress WHERE batch IN ({marks}) AND topic = %s
    AND consumer_group = %s AND "partition" = %s AND priority = %s
"""
COLUMNS = 'batch, topic, consumer_group, "partition", priority, acked, dead'
KEY = 'batch, topic, consumer_group, "partition", priority'
ROW = "(%s, %s, %s, %s, %s, %s, %s)"
UPDATES = {name: "{new:" + name + "}" for name in ("acked", "dead")}
CHUNK = 500
MOST_REMEMBERED = 1_000  # batches whose counts an owner remembers for a partition


def read(log: Log, plans: Iterable[SettlePlan]) -> None:
    """Read, before a settle, the counts that the leases of these plans do not remember: one statement for each
    partition that meets a batch for the first time.

    No other process writes them while the lease is held. They are read outside of the settle, which writes values: run
    again, it writes the same.
    """
    for plan in plans:
        if not plan.members:
            continue
        lease, batches = plan.lease, {member.batch for member in set(plan.members.values())}
        unknown = sorted(batches - lease.batch_counts.keys())
        for start in range(0, len(unknown), CHUNK):
            _read(log, lease, unknown[start : start + CHUNK])


def _read(log: Log, lease: HeldLease, batches: Sequence[str]) -> None:
    ref = lease.ref
    text = COUNTS.replace("{marks}", ", ".join(["%s"] * len(batches)))
    values = (*batches, ref.topic, ref.group, ref.partition, ref.priority)
    lease.batch_counts.update(dict.fromkeys(batches, (0, 0)))
    # With the proof of the server, since the settle that writes them only proves that it is there itself.
    found = log.execute(text, values).fetchall() if lease.server is None else lease.server.select(text, values, 3, 1)
    for batch, acked, dead in found:
        lease.batch_counts[batch] = (acked, dead)


def totals(plan: SettlePlan) -> dict[str, tuple[int, int]]:
    """Return (acked, dead) of each batch that a plan counts members of, with those."""
    found: dict[str, tuple[int, int]] = {}
    for member, count in Counter(plan.members.values()).items():
        acked, dead = found.get(member.batch) or plan.lease.batch_counts[member.batch]
        found[member.batch] = (acked, dead + count) if member.dead else (acked + count, dead)
    return found


def write(log: Log, plans: Iterable[SettlePlan]) -> None:
    """Store the counts of plans, in the current transaction, which has locked their offset rows."""
    rows = [
        (batch, ref.topic, ref.group, ref.partition, ref.priority, *counts)
        for plan in plans
        if plan.members
        for ref in (plan.lease.ref,)
        for batch, counts in sorted(totals(plan).items())
    ]
    if rows:
        upsert = log.dialect.upsert(KEY, UPDATES)
        insert_all(log, f"sqlqueue_batch_progress ({COLUMNS})", ROW, upsert, rows, CHUNK)


def remember(plans: Iterable[SettlePlan]) -> None:
    """Remember the counts of plans that were written. Not earlier: a settle whose outcome is unknown is run again."""
    for plan in plans:
        if plan.members:
            counts = totals(plan)
            if len(plan.lease.batch_counts) > MOST_REMEMBERED:
                plan.lease.batch_counts.clear()
            plan.lease.batch_counts.update(counts)
