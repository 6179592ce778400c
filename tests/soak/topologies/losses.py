"""What a database forgets in a failover, and how the checker's record is read without it.

A replica that is promoted holds what it had received of its primary's transactions: it may have forgotten messages that
were confirmed to publishers, and acks that were confirmed to consumers. The harness compares the tables of both
servers: those of the promoted one before any client is let in, those of the former primary after it, alone. So what is
missing is known message by message, and is the database's loss; nothing else is excused. That needs a replica that is
less behind than messages are kept for: of what the former primary had collected already, nothing can be told.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.soak.records import NEVER, Failover, Handling, Record, settles
from tests.soak.workload import ALL_READERS, LEASE_DURATION, TASKS

FINAL = ("acked", "dead")
AT_ONCE = 1.0  # seconds between two lines of a process that are of one settle


@dataclass(frozen=True)
class Snapshot:
    """What the tables of one server say. held: (topic, id) in the log or scheduled; pending: (topic, group, id) that
    are still to be delivered."""

    held: frozenset[tuple[str, str]]
    pending: frozenset[tuple[str, str, str]]


def look(alias: str) -> Snapshot:
    """Read the tables of the server that this connection leads to."""
    from sqlqueue.models import Message, ScheduledMessage
    from tests.soak.backlog import pending

    topics = {reader.topic for reader in (*ALL_READERS, TASKS)}
    held: set[tuple[str, str]] = set()
    for model in (Message, ScheduledMessage):
        held.update(model.objects.using(alias).filter(topic__in=topics).values_list("topic", "message_id"))
    return Snapshot(frozenset(held), frozenset(pending(alias) - acked(alias)))


def acked(alias: str) -> set[tuple[str, str, str]]:
    """Return what is acked beyond its group's position: (topic, group, id)."""
    from sqlqueue.models import DeliveryState, Message

    rows = DeliveryState.objects.using(alias).filter(acked=True)
    offsets = list(rows.values_list("topic", "consumer_group", "message_offset"))
    log = Message.objects.using(alias).filter(offset__in={offset for _, _, offset in offsets})
    ids = {(topic, offset): id for topic, offset, id in log.values_list("topic", "offset", "message_id")}
    return {(topic, group, ids[topic, offset]) for topic, group, offset in offsets if (topic, offset) in ids}


@dataclass
class Losses:
    """What the database forgot. messages: (topic, id) that publishers had been told are committed; acks: (topic, group,
    id) that consumers had been told are settled; unconfirmed: messages of which no publisher had been told."""

    messages: set[tuple[str, str]] = field(default_factory=set)
    acks: set[tuple[str, str, str]] = field(default_factory=set)
    unconfirmed: set[tuple[str, str]] = field(default_factory=set)


def forget(record: Record) -> Losses:
    """Take out of a record what its failovers forgot, as if it had never happened, and return what that was."""
    losses = Losses()
    for failover in record.failovers:
        _forget_messages(record, failover, losses)
        _forget_acks(record, failover, losses)
    return losses


def _forget_messages(record: Record, failover: Failover, losses: Losses) -> None:
    """A message that its publisher has published again since is to be delivered like any other."""
    since = {(each.topic, each.id) for each in record.handlings if each.began > failover.opened}
    # Ticks and the like: consumers publish them, and the log at the end tells that they did so again.
    again = failover.forgotten & {(entry.topic, entry.id) for entry in record.jobs.log}
    for transaction in record.transactions:
        lost = {(topic, id) for topic, _, id in transaction.messages} & failover.forgotten
        if transaction.told is None:
            again |= lost & since
            losses.unconfirmed |= lost - since
        elif transaction.told < failover.opened or (not transaction.doubted and transaction.began < failover.died):
            losses.messages |= lost
        else:
            again |= lost
        gone_here = lost - again
        transaction.messages = [each for each in transaction.messages if (each[0], each[2]) not in gone_here]
    gone = failover.forgotten - again

    def of_the_past(handling: Handling) -> bool:
        """What a process had read of the former primary it may still begin for as long as its lease lasts."""
        message = handling.topic, handling.id
        until = failover.opened + LEASE_DURATION if message in gone else failover.died
        return (message in gone or message in again) and handling.began < until

    _drop(record, {id(handling) for handling in record.handlings if of_the_past(handling)})


def _forget_acks(record: Record, failover: Failover, losses: Losses) -> None:
    """What was handled before, and is pending on the promoted server, may be handled once more: then that alone counts.
    What is not handled again keeps its handling. The effects of an atomic one are gone, though, and will be missed."""
    for handling, settle in settles(record):
        known = (handling.topic, handling.group, handling.id)
        if settle.outcome in FINAL and settle.at < failover.opened and known in failover.pending:
            losses.acks.add(known)
    again = {(each.topic, each.group, each.id) for each in record.handlings if each.began > failover.opened}
    again &= failover.pending
    before = [each for each in record.handlings if each.began < failover.died]
    _drop(record, {id(each) for each in before if (each.topic, each.group, each.id) in again})


def _drop(record: Record, handlings: set[int]) -> None:
    """Take handlings, by their id(), and their settles out of a record."""
    dropped = {settle for handling, settle in settles(record) if id(handling) in handlings}
    for settle in dropped:
        dead_letter = settle.topic, settle.group, settle.offset
        if settle.outcome == "dead" and abs(record.dead_lettered.get(dead_letter, NEVER) - settle.at) < AT_ONCE:
            del record.dead_lettered[dead_letter]
    record.settled = [each for each in record.settled if each not in dropped]
    record.handlings = [each for each in record.handlings if id(each) not in handlings]
