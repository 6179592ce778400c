"""Deletes single messages from the log, whatever their retention."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlqueue.database import retries
from sqlqueue.database.log import Log
from sqlqueue.log.collect import delete_free
from sqlqueue.log.groups import lock_topic
from sqlqueue.models import Message
from sqlqueue.operations.purge import deletable_topic
from sqlqueue.operations.replay_requests import fail_trials
from sqlqueue.operations.reschedule import acknowledge
from sqlqueue.stats.group_status import IN_FLIGHT, open_in, registered_groups

AT_ONCE = 500
COLUMNS = ("offset", "topic", "partition", "priority", "partition_key", "target_group")


class Unsettled(NamedTuple):
    """Offsets of messages that a group has not settled. waiting: those that wait or were not read; in_flight: those
    that are, or may be, in flight."""

    waiting: set[int]
    in_flight: set[int]


class Deleted(NamedTuple):
    """How many messages were deleted; how many were left because a group has not settled them, and how many because
    they are in flight or another transaction has locked them."""

    deleted: int
    unsettled: int
    in_flight: int


def unsettled(log: Log, topic: str, offsets: Iterable[int]) -> dict[str, Unsettled]:
    """Return, by group, which of these messages it has not settled; groups that have settled all are left out. Five
    statements for each 500 messages, however many groups there are."""
    found: dict[str, Unsettled] = {}
    wanted = sorted(set(offsets))
    for start in range(0, len(wanted), AT_ONCE):
        _add_open(log, _messages(log, topic, wanted[start : start + AT_ONCE]), found)
    return found


def delete(log: Log, topic: str, offsets: Iterable[int], *, also_unsettled: bool = False) -> Deleted:
    """Delete messages of a topic for good; offsets that are not in the log are ignored.

    Without `also_unsettled` only messages are deleted that every group has settled. With it, messages that wait for a
    group, or that it has not read, are first acknowledged on its behalf, so that later messages of their keys go on.
    Messages in flight are left. Receipts and dead letters of deleted messages stay, and their ids can be published
    again.

    Deleting an unread message revokes the lease of its partition: what is in flight there is delivered again.
    Raises ConfigurationError for dead letters: discard those.
    """
    deletable_topic(log, topic)
    wanted = sorted(set(offsets))
    done = Deleted(0, 0, 0)
    for start in range(0, len(wanted), AT_ONCE):
        chosen = wanted[start : start + AT_ONCE]
        if also_unsettled:
            _acknowledge(log, topic, chosen)
        some = retries.run(log, _delete, log, topic, chosen)
        done = Deleted(*(sum(pair) for pair in zip(done, some)))
    return done


def _acknowledge(log: Log, topic: str, offsets: Sequence[int]) -> None:
    """Acknowledge waiting messages, group by group, each group in its own transaction; a replay whose trial is among
    them fails. A message that is in flight in one group is left in all of them."""
    found = unsettled(log, topic, offsets)
    waiting, in_flight = _of_any_group(found)
    fail_trials(log, topic, sorted(waiting - in_flight), "was deleted by an operator")
    for group, its in sorted(found.items()):
        acknowledge(log, group, topic, its.waiting - in_flight)


def _delete(log: Log, topic: str, offsets: Sequence[int]) -> Deleted:
    """Delete what is settled, in one transaction that locks the topic: no group is registered or moved meanwhile."""
    lock_topic(log, topic)
    messages = _messages(log, topic, offsets)
    found: dict[str, Unsettled] = {}
    _add_open(log, messages, found)
    waiting, in_flight = _of_any_group(found)
    settled = [message.offset for message in messages if message.offset not in waiting | in_flight]
    deleted = len(delete_free(log, settled))
    return Deleted(deleted, len(waiting - in_flight), len(in_flight) + len(settled) - deleted)


def _messages(log: Log, topic: str, offsets: Sequence[int]) -> list[Message]:
    return list(Message.objects.using(log.alias).filter(offset__in=offsets, topic=topic).only(*COLUMNS))


def _add_open(log: Log, messages: Sequence[Message], found: dict[str, Unsettled]) -> None:
    """Add which of these messages of a topic each group has not settled."""
    groups = registered_groups(log, {message.topic for message in messages})
    for (offset, group), status in open_in(log, messages, groups).items():
        its = found.setdefault(group, Unsettled(set(), set()))
        (its.in_flight if status.state == IN_FLIGHT else its.waiting).add(offset)


def _of_any_group(found: dict[str, Unsettled]) -> Unsettled:
    waiting = {offset for its in found.values() for offset in its.waiting}
    return Unsettled(waiting, {offset for its in found.values() for offset in its.in_flight})
