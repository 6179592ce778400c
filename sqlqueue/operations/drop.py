"""Drops a topic: its messages, scheduled messages and dead letters, its groups with all that they know, its
what effects are not done with, and its row.

In several transactions: first the topic is paused, so that nothing of it is delivered any more, and what would be lost
is counted again, up to the horizon; then its groups are removed, and what was counted is deleted, in bounded batches;
last its row. One that is interrupted is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from django.db.models import QuerySet

from sqlqueue.core import effects
from sqlqueue.core.effects import Count
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX
from sqlqueue.database import retries
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.database.horizon import Horizon, on_one_server
from sqlqueue.database.log import Log
from sqlqueue.database.server_identity import ServerIdentity
from sqlqueue.exceptions import ConfigurationError, HorizonUnknown
from sqlqueue.log import groups, withdrawing
from sqlqueue.log.layout_changes import under_way
from sqlqueue.log.topics import forget_topics
from sqlqueue.models import (
    AckedMark,
    ConsumerGroup,
    Layout,
    Message,
    PartitionLease,
    Request,
    ScheduledMessage,
    SubscriberHeartbeat,
    Topic,
    dead_letter_topic,
)
from sqlqueue.operations.move import HORIZON_TIMEOUT
from sqlqueue.operations.topics import preview

DELETED_AT_ONCE: Final = 500  # rows

Step: TypeAlias = Callable[[], int]  # deletes some rows, and returns how many


@dataclass(frozen=True, slots=True)
class DropPreview:
    """What a drop deletes. messages: how many, retained ones that all groups have settled included; estimated: that and
    `unsettled` may be estimates; unsettled: by group, how many of them it has not settled; unread: no group is
    registered, so none of them was delivered; effects: what effects lose, by the
    names of their figures; subscribers: how many live consumer processes serve it."""

    messages: int
    estimated: bool
    unsettled: dict[str, int]
    unread: bool
    scheduled: int
    dead_letters: int
    effects: Mapping[str, Count]
    subscribers: int

    @property
    def loses(self) -> bool:
        """Whether something is deleted that was not delivered to every group, failed and was not replayed, or that
        an effect is not done with."""
        undelivered = self.messages if self.unread else sum(self.unsettled.values())
        return bool(undelivered or self.scheduled or self.dead_letters or self.of_effects)

    @property
    def of_effects(self) -> int:
        """How much effects lose, all figures together."""
        return sum(each.count for each in self.effects.values())


def preview_drop(log: Log, topic: str) -> DropPreview:
    """Count what drop() would delete; change nothing. Raises ConfigurationError for what cannot be dropped."""
    if topic.endswith(DEAD_LETTER_SUFFIX):
        raise ConfigurationError(f"topic {topic!r} goes with the topic whose dead letters it has")
    if (owner := effects.owner_of(topic)) is not None:
        raise ConfigurationError(f"topic {topic!r} is an app's own, as all that begin with {owner.topics!r} are")
    found = preview(log, topic)
    return DropPreview(
        found.messages,
        found.estimated,
        found.unsettled,
        not found.unsettled,
        ScheduledMessage.objects.using(log.alias).filter(topic=topic).count(),
        Message.objects.using(log.alias).filter(topic=dead_letter_topic(topic)).count(),
        effects.lost_with(log, topic),
        _subscribers(log, topic),
    )


def drop(
    log: Log,
    topic: str,
    *,
    unsettled: bool = False,
    timeout: float = HORIZON_TIMEOUT,
    deleted: Callable[[int], None] = lambda count: None,
) -> None:
    """Delete a topic with everything of it, its dead letters included; receipts, kept results and what
    effects are done with stay until their own time is over. deleted: is called with how many rows are gone so far.

    Without `unsettled` a topic that would lose something (see DropPreview) is refused. So is one that live consumer
    processes serve, which would make it anew. End its publishers before, too: one that still runs remembers the topic,
    and what it publishes later stays in the log until a topic of that name, with as many partitions, is there again.

    Raises ConfigurationError for what is refused, and if something was published meanwhile: then drop it again. Raises
    HorizonUnknown if a transaction that publishes stays open for `timeout` seconds.
    """
    _refuse_losses(log, topic, unsettled)
    was_paused = retries.run(log, _close, log, topic)
    try:
        with on_one_server(log) as server:
            through = Horizon(log, server).wait(timeout)
        # Again: what has been published since is to be lost as little. What comes from now on is not deleted.
        _refuse_losses(log, topic, unsettled)
    except (ConfigurationError, HorizonUnknown):
        Topic.objects.using(log.alias).filter(name=topic).update(paused=was_paused)
        raise
    names = [topic, dead_letter_topic(topic)]
    registered = ConsumerGroup.objects.using(log.alias).filter(topic__in=names)
    for name, group in registered.values_list("topic", "consumer_group"):
        groups.remove(log, group, name)
    steps: list[Step] = []
    for name in names:
        rows = Message.objects.using(log.alias).filter(topic=name)
        steps.append(partial(_delete_some, log, name, rows if unsettled else rows.filter(offset__lte=through)))
        if unsettled:
            scheduled = ScheduledMessage.objects.using(log.alias).filter(topic=name)
            steps.append(partial(_delete_some, log, name, scheduled))
    if unsettled:
        steps += [partial(effect.withdrawn, log, topic, "", None) for effect in effects.registered()]
    count = 0
    for step in steps:
        while some := _on_server(log, server, step):
            count += some
            deleted(count)
    retries.run(log, _delete_topic, log, topic)
    forget_topics()


def _subscribers(log: Log, topic: str) -> int:
    alive = SubscriberHeartbeat.objects.using(log.alias).alive().filter(topic=topic)
    return alive.values("subscriber").distinct().count()


def _refuse_losses(log: Log, topic: str, unsettled: bool) -> None:
    if preview_drop(log, topic).loses and not unsettled:
        raise ConfigurationError(
            f"topic {topic!r} has messages that are not settled, scheduled messages, dead letters or work that is not"
            " done, and they would be lost: settle them first, or say that they may be"
        )


def _close(log: Log, topic: str) -> bool:
    """Pause the topic; return whether it was paused before."""
    before = groups.lock_topic(log, topic).paused
    if count := _subscribers(log, topic):
        raise ConfigurationError(
            f"{count} consumer process(es) serve topic {topic!r}, and would make it anew: end them first"
        )
    _refuse_altered(log, topic)
    Topic.objects.using(log.alias).filter(name=topic).update(paused=True)
    return before


def _refuse_altered(log: Log, topic: str) -> None:
    change = under_way(log)
    if change is not None and change.topic == topic:
        raise ConfigurationError(
            f"the partitions of topic {topic!r} are being changed: let that end first (`queuetopic alter {topic}"
            f" --partitions {change.later.partitions}` carries it on)"
        )


def _on_server(log: Log, server: ServerIdentity, step: Step) -> int:
    """Take a step in a transaction on the server whose horizon is known; return how many rows it has deleted."""

    def confirmed() -> int:
        count = step()
        server.confirm()
        return count

    with on_one_server(log):
        return retries.run(log, confirmed)


def _delete_some(log: Log, topic: str, rows: QuerySet[Any]) -> int:
    ids = list(rows.values_list("pk", flat=True)[:DELETED_AT_ONCE])
    if rows.model is ScheduledMessage:
        withdrawing.withdraw_scheduled(log, ids, owned=False)
    else:
        withdrawing.withdraw(log, topic, "", ids)
    rows.filter(pk__in=ids).only("pk").delete()
    return len(ids)


def _delete_topic(log: Log, topic: str) -> None:
    groups.lock_topic(log, topic)
    for model in (Message, ScheduledMessage, ConsumerGroup):
        if model._default_manager.using(log.alias).filter(topic=topic).exists():
            raise ConfigurationError(
                f"topic {topic!r} was used meanwhile: end its publishers and consumers, and drop it again"
            )
    _refuse_altered(log, topic)
    # The layout stays: its numbers are never used again, and a publisher that still runs remembers it.
    ended = Layout.objects.using(log.alias).filter(topic=topic, end__isnull=False, retired_at=None)
    ended.update(retired_at=DatabaseNow())
    names = [topic, dead_letter_topic(topic)]
    for other in (AckedMark, PartitionLease, Request):
        other._default_manager.using(log.alias).filter(topic__in=names).delete()
    Topic.objects.using(log.alias).filter(name__in=names).delete()
