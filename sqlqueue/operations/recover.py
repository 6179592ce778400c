"""Recovery after a dump was restored: nothing that a process knew before counts any more.

A restore brings rows back without a change of the server's identity: the leases name processes that are gone, and their
fencing tokens would be given a second time, to other owners.
"""

from __future__ import annotations

import secrets
from typing import NamedTuple

from django.db.models import Max

from sqlqueue.database import retries, sequence
from sqlqueue.database.insert_sql import HORIZON
from sqlqueue.database.log import Log
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.models import Offset, PartitionLease, PublishGate, SubscriberHeartbeat, Topic
from sqlqueue.models.publish_gate import fill
from sqlqueue.models.subscriber import WAITS

MOST_ADDED = (
    2**40
)  # to the highest token; a column of tokens holds 2**63, so a database can be recovered as long as it lasts
MOST_NAMED = 5  # live processes


class Recovery(NamedTuple):
    """leases, held: how many there are, and of how many a process is the holder; token: of all of them, the highest
    before the recovery, and the same for all after it; sequence: offsets by which the log's sequence is behind."""

    leases: int
    held: int
    offsets: int
    token: int
    sequence: int


def preview(log: Log) -> Recovery:
    """Return what a recovery would change, without changing it."""
    leases, offsets = PartitionLease.objects.using(log.alias), Offset.objects.using(log.alias)
    token = max(rows.aggregate(highest=Max("fencing_token"))["highest"] or 0 for rows in (leases, offsets))
    mark = sequence.look(log)
    held = leases.exclude(holder__in=("", WAITS)).count()
    return Recovery(leases.count(), held, offsets.count(), token, max(0, mark.known - mark.last_issued))


def recover(log: Log) -> Recovery:
    """Give all leases and offset rows one fencing token, a random one above all that there are, free the leases, and
    raise the log's sequence above all known offsets, and the generation to that of the layouts; return what was done.
    Positions, rows and messages stay.

    What former owners had in flight is delivered again. May be run twice. Raises ConfigurationError, and has changed no
    row, if the database's user may not raise the sequences, and while consumer processes live, as their heartbeats say:
    they know a log that is no more, and would pass messages of the present one.
    """
    before = preview(log)
    _refuse_living(log)
    sequence.catch_up(log)  # takes rights that changing rows does not
    fill(log)
    return before._replace(token=retries.run(log, _recover, log, secrets.randbelow(MOST_ADDED) + 1))


def _recover(log: Log, added: int) -> int:
    """Return the new token. Topics are locked first, in their order, so that no group is registered, moved or collected
    meanwhile; then leases before offset rows, as acquiring does it."""
    list(Topic.objects.using(log.alias).select_for_update().order_by("name").values_list("name", flat=True))
    leases, offsets = PartitionLease.objects.using(log.alias), Offset.objects.using(log.alias)
    list(leases.select_for_update().order_by("topic", "consumer_group", "partition").values_list("id"))
    _refuse_living(log)
    highest = max(rows.aggregate(highest=Max("fencing_token"))["highest"] or 0 for rows in (leases, offsets))
    token = int(highest) + added
    leases.update(fencing_token=token, valid_until=None)
    leases.exclude(holder=WAITS).update(holder="")
    offsets.update(fencing_token=token)
    PublishGate.objects.using(log.alias).filter(slot=HORIZON).update(value=0)
    return token


def _refuse_living(log: Log) -> None:
    alive = sorted(set(SubscriberHeartbeat.objects.using(log.alias).alive().values_list("subscriber", flat=True)))
    if alive:
        some = ", ".join(alive[:MOST_NAMED]) + (" and others" if len(alive) > MOST_NAMED else "")
        raise ConfigurationError(
            f"{len(alive)} processes consume ({some}): stop them first. One that was killed, or that the restored data "
            "shows, counts for LEASE_DURATION"
        )
