"""Consumer groups: registered before their first read, so that collection waits for them even while they are away; and
their active hours and limits, which their consumers' options say, unless an operator has overridden them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from django.db.models import F, Q

from sqlqueue.core.effects import registered as registered_effects
from sqlqueue.core.flow import OPTIONS, Flow, checked_flow, in_effect, stored
from sqlqueue.core.keys import GROUP_LENGTH, checked_name, did_you_mean, numbers_of
from sqlqueue.core.partition.ref import GroupTopic
from sqlqueue.database import retries
from sqlqueue.database.dialects.base import marks_of
from sqlqueue.database.horizon import Horizon, on_one_server
from sqlqueue.database.log import Log
from sqlqueue.database.retries import in_transaction
from sqlqueue.database.server_identity import ServerIdentity
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log import layouts, retention
from sqlqueue.log.layouts import give_leases, leased
from sqlqueue.log.topics import topic_info
from sqlqueue.models import BlockedRange, ConsumerGroup, DeliveryState, LimitShare, Offset, PartitionLease, Topic
from sqlqueue.models.subscriber import WAITS

EARLIEST, LATEST = "earliest", "latest"


# The options of groups and topics that may change while a subscriber runs. Not by its heartbeats: it has them while
# that table is locked, too. Index: the topics', the groups' and the layouts' keys.
SERVED = """
    SELECT g.consumer_group, t.name, t.paused, g.paused, t.history, t.partitions, t.priorities,
    g.flow, g.flow_overrides,
    EXISTS (SELECT 1 FROM sqlqueue_layout WHERE sqlqueue_layout.topic = t.name AND base > 0)
    FROM sqlqueue_topic t {then} sqlqueue_consumer_group g ON g.topic = t.name AND g.consumer_group IN ({groups})
    WHERE t.name IN ({topics})
"""


class Served(NamedTuple):
    """The options of a (group, topic) that a subscriber needs. paused: the topic or the group is paused; flow: its
    active hours and limits; altered: the topic has had another number of partitions, or will have: `partitions` are
    those of its first epoch."""

    paused: bool
    history: str
    partitions: int
    priorities: int
    flow: Flow
    altered: bool = False


def served(log: Log, group_topics: Collection[tuple[str, str]]) -> dict[tuple[str, str], Served]:
    """Return the options of these (group, topic), without those whose group or topic is not registered. One
    statement."""
    if not group_topics:
        return {}
    groups, topics = (sorted(set(names)) for names in zip(*group_topics, strict=True))
    text = SERVED.replace("{groups}", marks_of(len(groups))).replace("{topics}", marks_of(len(topics)))
    return {
        (group, topic): Served(
            bool(topic_paused or group_paused),
            history,
            partitions,
            priorities,
            in_effect(declared, overrides),
            bool(altered),
        )
        for (
            group,
            topic,
            topic_paused,
            group_paused,
            history,
            partitions,
            priorities,
            declared,
            overrides,
            altered,
        ) in log.execute(text, (*groups, *topics)).fetchall()
    }


def lock_topic(log: Log, topic: str) -> Topic:
    """Lock a topic's row until the transaction ends: registration, moves, removal and collection wait for each
    other."""
    return Topic.objects.using(log.alias).select_for_update().get(name=topic)


def register(log: Log, group: str, topic: str, start: str = EARLIEST, horizon: Horizon | None = None) -> bool:
    """Register a group for a topic, unless it is; return whether it is new.

    start: "earliest", everything that the log still holds; "latest", what is published from now on. It is fixed at
    registration, for the whole log. With "latest" it waits for a finished probe of the gate.
    """
    if ConsumerGroup.objects.using(log.alias).filter(topic=topic, consumer_group=group).exists():
        return False
    if start != LATEST:
        return register_at(log, group, topic, 0)
    with on_one_server(log) as server:
        known = horizon or Horizon(log, server)
        return register_at(log, group, topic, known.wait(), known.server)


def register_at(log: Log, group: str, topic: str, offset: int, server: ServerIdentity | None = None) -> bool:
    """Register a group that begins behind an offset, which must not be above the horizon, unless it is registered.

    server: whose horizon that is. Raises ServerChanged or SessionReplaced if it is another one, or may be.
    """
    checked_name(group, "group", GROUP_LENGTH)
    topic_info(log, topic)  # which creates it
    return retries.run(log, _register, log, group, topic, offset, server)


def registered(log: Log, topics: Collection[str]) -> set[tuple[str, str]]:
    """Return every registered (group, topic) of these topics."""
    rows = ConsumerGroup.objects.using(log.alias).filter(topic__in=list(topics))
    return set(rows.values_list("consumer_group", "topic"))


def _register(log: Log, group: str, topic: str, offset: int, server: ServerIdentity | None) -> bool:
    locked = lock_topic(log, topic)
    found, created = ConsumerGroup.objects.using(log.alias).get_or_create(
        topic=topic, consumer_group=group, defaults={"start": offset}
    )
    if created:
        retention.forget_above(log, topic, offset)
    give_leases(log, found, locked)
    if server is not None:
        server.confirm()
    return created


@in_transaction
def start_epochs(log: Log, group: str, topic: str) -> bool:
    """Give a group the leases that it has not of the topic's epochs, and let it start those partitions that it may;
    return whether any lease has become free."""
    locked = lock_topic(log, topic)
    registered = ConsumerGroup.objects.using(log.alias).filter(topic=topic, consumer_group=group).first()
    return registered is not None and give_leases(log, registered, locked)


def start_all(log: Log, topic: str) -> None:
    """Do so for every group of a topic: also for those that no process serves, so that what waits for them is seen."""
    groups = ConsumerGroup.objects.using(log.alias).filter(topic=topic).order_by("consumer_group")
    for group in groups.values_list("consumer_group", flat=True):
        if leased(log, group, topic).more:
            start_epochs(log, group, topic)


@in_transaction
def remove(log: Log, group: str, topic: str) -> bool:
    """Remove a group from a topic, with its offsets and delivery states; return whether there was one.

    Its leases stay, each with a greater token: tokens never return, so a present owner is never taken for an owner in a
    later group of the same name.
    """
    lock_topic(log, topic)
    revoke(log, group, topic)
    Offset.objects.using(log.alias).filter(topic=topic, consumer_group=group).delete()
    DeliveryState.objects.using(log.alias).filter(topic=topic, consumer_group=group).delete()
    BlockedRange.objects.using(log.alias).filter(topic=topic, consumer_group=group).delete()
    LimitShare.objects.using(log.alias).filter(topic=topic, consumer_group=group).delete()
    for effect in registered_effects():
        effect.group_removed(log, topic, group)
    deleted, _ = ConsumerGroup.objects.using(log.alias).filter(topic=topic, consumer_group=group).delete()
    return bool(deleted)


def revoke(log: Log, group: str, topic: str, partition: int | None = None, *, falls: bool = True) -> None:
    """Take the leases of a group from their holders, with tokens + 1: a former holder can settle nothing any more. In
    the caller's transaction, which has locked the topic.

    partition: those of this one, and with `falls`, which says that its watermark may fall, those of all later epochs.
    Leases of later epochs wait from then on until the group may start them again (layouts).
    """
    leases = PartitionLease.objects.using(log.alias).filter(topic=topic, consumer_group=group)
    offsets = Offset.objects.using(log.alias).filter(topic=topic, consumer_group=group)
    if partition is not None:
        wanted = Q(partition=partition)
        if falls:
            wanted |= Q(partition__gt=partition)  # those of later epochs are among these
        leases = leases.filter(wanted)
    # Leases before offsets, in the order of their partitions, as acquiring does it: no deadlock by order. And before
    # the first plain read: no snapshot is older than the locks.
    found = dict(leases.select_for_update().order_by("partition").values_list("id", "partition"))
    epochs = layouts.epochs(log, topic)
    if partition is not None:
        behind = [epoch for epoch in epochs if epoch.base > partition] if falls else []
        kept = {partition, *numbers_of(behind)}
        found = {id: number for id, number in found.items() if number in kept}
        offsets = offsets.filter(partition__in=kept)
    later = {number for epoch in epochs[1:] for number in epoch.numbers}
    for holder, some in (("", False), (WAITS, True)):
        ids = [id for id, number in found.items() if (number in later) is some]
        if ids:
            leases.filter(id__in=ids).update(fencing_token=F("fencing_token") + 1, holder=holder, valid_until=None)
    offsets.update(fencing_token=F("fencing_token") + 1)


def declare_flows(log: Log, flows: Mapping[GroupTopic, Flow]) -> None:
    """Store what consumers' options say of their groups, where it is not stored yet: the process that has started last
    decides. One statement if there is nothing to store."""
    rows = ConsumerGroup.objects.using(log.alias).filter(topic__in={topic for _group, topic in flows})
    for pk, group, topic, present in rows.values_list("pk", "consumer_group", "topic", "flow"):
        flow = flows.get((group, topic))
        if flow is not None and stored(flow) != (present or ""):
            change = rows.filter(pk=pk)
            retries.run(log, change.update, flow=stored(flow) or None)


def override_flow(log: Log, group: str, topic: str, values: Mapping[str, Any]) -> bool:
    """Let exactly these options of a group be what is given, whatever its consumers' options say; {} takes every
    override back. Consumers follow within a second. Return whether anything has changed.

    values: as `@consumer` takes them; None: no limit. Raises ConfigurationError for an unknown option, an invalid
    value, or an unknown group.
    """
    problems = [
        f"{name!r} cannot be overridden.{did_you_mean(name, OPTIONS)}" for name in values if name not in OPTIONS
    ]
    flow = checked_flow(values, problems)
    if problems:
        raise ConfigurationError("; ".join(problems))
    text = stored(flow, [name for name in values if values[name] is None]) or None
    return retries.run(log, _override, log, group, topic, text)


def _override(log: Log, group: str, topic: str, text: str | None) -> bool:
    rows = ConsumerGroup.objects.using(log.alias).filter(topic=topic, consumer_group=group)
    row = rows.select_for_update().first()
    if row is None:
        raise ConfigurationError(f"there is no group {group!r} in topic {topic!r}")
    if row.flow_overrides == text:
        return False
    rows.update(flow_overrides=text)
    return True
