"""Spreads a topic over other shards while publishers and consumers run.

Each shard, former or later, goes over to a new epoch by itself, with the steps of `repartition`; what is done here is
what concerns all of them:

1. the topic's row on DATABASE's shard says that its keys are to go over, and over which shards they will be spread;
2. each shard announces that: its publishers learn of the new epoch, and go on as before (the new shards come first,
   where the groups of the others are registered);
3. once all have, the row says that keys may go over, and there is no way back: see `reshard_state.ready`;
4. once the ends are known everywhere, the rows say that they have.

What has been done is in the tables: any process carries it on, the command or a consumer process of DATABASE's shard.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from django.db import IntegrityError

from sqlqueue.conf import settings
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX, did_you_mean
from sqlqueue.core.shards import Spread, lists_text
from sqlqueue.database import retries, turning
from sqlqueue.database.chunks import in_chunks
from sqlqueue.database.horizon import highest_offset
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log.change_state import Progress, under_way
from sqlqueue.log.groups import register_at
from sqlqueue.log.placement import forget_placements
from sqlqueue.log.reshard_state import answering, has_ended, is_announced, replace_spread, stored_spread, taking_part
from sqlqueue.models import Batch, BatchPart, ConsumerGroup, Topic
from sqlqueue.models.topic import SHARDS_COLUMN
from sqlqueue.operations.former_versions import SAME_SHARDS, former_subscribers
from sqlqueue.operations.layout_changes import open_block
from sqlqueue.operations.repartition import Repartition, announce

COPIED = ("priorities", "partitions", "retention", "history", "retention_overridden", "history_overridden", "paused")


class ShardProgress(NamedTuple):
    """How far a shard is: `done`, or what its last step has met, None if that was nothing; and whether it answers."""

    shard: str
    done: bool
    progress: Progress | None
    answers: bool = True


def checked(topic: str, shards: Collection[str]) -> Spread:
    """Return a topic's spread as it will be. Raises ConfigurationError for what cannot be done."""
    if not settings.sharded:
        raise ConfigurationError("there is one shard only: name more in SQLQUEUE['SHARDS'] first, and migrate them")
    if topic.endswith(DEAD_LETTER_SUFFIX):
        raise ConfigurationError(f"topic {topic!r} has dead letters: they are where their topic's messages are")
    for name in shards:
        if name not in settings.shards:
            raise ConfigurationError(f"there is no shard {name!r}.{did_you_mean(name, settings.shards)}")
    if not shards:
        raise ConfigurationError("name one shard at least")
    wanted = tuple(sorted(set(shards)))
    spread = _spread(topic)
    if spread.coming is not None and spread.coming != wanted:
        raise ConfigurationError(
            f"topic {topic!r} is being spread over {', '.join(spread.coming)}, and one change at a time is made: "
            f"`queuetopic alter {topic} --shards {','.join(spread.coming)}` carries it on"
        )
    if spread.coming is None and spread.present == wanted:
        raise ConfigurationError(f"topic {topic!r} is on {', '.join(wanted)} already")
    after = spread._replace(coming=wanted)
    if len(after._replace(closing=True).stored()) > SHARDS_COLUMN:
        raise ConfigurationError(
            f"topic {topic!r} has been spread over too many lists of shards: let it have a successor"
        )
    return after


def _spread(topic: str) -> Spread:
    stored = Topic.objects.using(settings.home).filter(name=topic).values_list("shards", flat=True).first()
    if stored is None:
        raise ConfigurationError(f"there is no topic {topic!r}")
    return stored_spread(settings.home, topic) if stored else Spread(((settings.shard_name(settings.home),),))


def begin(topic: str, shards: Collection[str]) -> None:
    """Let a topic's keys go over to these shards. Does nothing if that was begun.

    Raises ConfigurationError for what cannot be done, among others while a shard has another change under way, for
    topics with unfinished batches, and while consumers of an older version live.
    """
    after = checked(topic, shards)
    if _spread(topic).coming is not None:
        return
    _refuse_batches(topic, after)
    for alias in taking_part(after):
        name = settings.shard_name(alias)
        if change := under_way(alias):
            raise ConfigurationError(
                f"the partitions of topic {change.topic!r} are being changed on shard {name!r}: let that end first"
            )
        if former := former_subscribers(alias, SAME_SHARDS):
            raise ConfigurationError(f"consumers of an older version serve shard {name!r}: {', '.join(former)}")
        turning.refuse_who_may_not(alias)
    retries.run(settings.home, _begin, topic, after)


def _begin(topic: str, after: Spread) -> None:
    row = Topic.objects.using(settings.home).select_for_update().get(name=topic)
    if row.shards in ("", after._replace(coming=None).stored()):
        row.shards = after.stored()
        row.save(using=settings.home, update_fields=["shards"])


def _refuse_batches(topic: str, spread: Spread) -> None:
    """Refuse to let keys of unfinished batches go over."""
    batches: set[str] = set()
    for alias in {settings.home, *taking_part(spread)}:
        batches |= set(BatchPart.objects.using(alias).filter(topic=topic).values_list("batch", flat=True).distinct())
    unfinished = 0
    for some in in_chunks(settings.home, sorted(batches), weigh=len):
        unfinished += Batch.objects.using(settings.home).filter(pk__in=some, finished_at=None).count()
    if unfinished:
        raise ConfigurationError(
            f"topic {topic!r} has members of {unfinished} batches that are not finished: let them finish, or cancel"
            " them"
        )


def abort(topic: str) -> None:
    """Let a topic's keys stay where they are. Raises ConfigurationError if no change is under way, and once keys may
    have gone over."""
    spread = _spread(topic)
    if spread.coming is None:
        raise ConfigurationError(f"there is nothing to abort: no change of the shards of topic {topic!r} is under way")
    if spread.closing or not replace_spread(settings.home, topic, spread, spread._replace(coming=None)):
        raise ConfigurationError(
            f"keys of topic {topic!r} have gone over to the new shards already, or may have, and an order that is kept"
            f" has no way back: let it end, and then alter it to --shards {','.join(spread.present)} again"
        )
    for alias in taking_part(spread):
        answering(alias, replace_spread, alias, topic, spread, spread._replace(coming=None))


class Reshard:
    """Takes the steps of the change of a topic's shards. Not thread-safe."""

    def __init__(self, topic: str):
        self.topic = topic
        self._steps: dict[str, Repartition] = {}

    def step(self) -> list[ShardProgress]:
        """Do on each shard what can be done at once; return how far each is, nothing if no change is under way."""
        spread = stored_spread(settings.home, self.topic)
        if spread.coming is None:
            return []
        aliases = taking_part(spread)
        if not spread.closing:
            for alias in aliases:
                with suppress(ConfigurationError):  # what was aborted is not undone there yet
                    answering(alias, announce_at, alias, self.topic, spread)
        found = [self._step(alias, lists_text(spread.all_lists)) for alias in aliases]
        if all(one.done for one in found) and self._settle(spread):
            return []
        return found

    def _step(self, alias: str, shards: str) -> ShardProgress:
        step = self._steps.setdefault(alias, Repartition(alias))
        name = settings.shard_name(alias)
        ended = answering(alias, has_ended, alias, self.topic, shards)
        if ended:
            return ShardProgress(name, True, None)
        return ShardProgress(name, False, answering(alias, step.step), answers=ended is not None)

    def _settle(self, spread: Spread) -> bool:
        """Let the rows say that all keys have gone over; DATABASE's last."""
        after = Spread(spread.all_lists)
        closing = spread._replace(closing=True)
        for alias in sorted(taking_part(spread), key=lambda alias: alias == settings.home):
            rows = Topic.objects.using(alias).filter(name=self.topic)
            if answering(alias, partial(rows.update, shards=after.stored())) is None:
                return False
        forget_placements()
        replace_spread(settings.home, self.topic, closing, after)
        return True


def announce_at(alias: str, topic: str, spread: Spread) -> None:
    """Announce a change on a shard: the topic's row says so, and publishers learn of the new epoch."""
    shards = lists_text(spread.all_lists)
    if is_announced(alias, topic, shards):
        return
    name, home = settings.shard_name(alias), settings.home
    first = settings.shards[spread.present[0]]
    partitions = None if name in spread.present else open_block(first, topic).partitions
    if alias != home:
        _repeat(alias, topic, spread)
    if name not in spread.present and not _bring_groups(alias, topic, spread.present):
        return
    if stored_spread(home, topic) == spread:  # it was not aborted meanwhile
        announce(alias, topic, partitions, shards, name)


def _repeat(alias: str, topic: str, spread: Spread) -> None:
    """Let a shard's row of a topic, which is made if there is none, say what DATABASE's says of its shards."""
    rows = Topic.objects.using(alias).filter(name=topic)
    if not rows.exists():
        at_home = Topic.objects.using(settings.home).get(name=topic)
        options = {name: getattr(at_home, name) for name in COPIED}
        with suppress(IntegrityError):  # a publisher was faster
            Topic.objects.using(alias).create(name=topic, shards=spread.stored(), **options)
    rows.update(shards=spread.stored())


def _bring_groups(alias: str, topic: str, former: Collection[str]) -> bool:
    """Register the groups of a topic's former shards on one that is new to it, before a key goes over; return whether
    all of those answer. Else a group that began with the latest would miss what comes before its processes do, and what
    no group waits for may be collected."""
    for name in former:
        source = settings.shards[name]
        rows = ConsumerGroup.objects.using(source).filter(topic=topic).order_by("consumer_group")
        groups: list[ConsumerGroup] | None = answering(source, list, rows)
        if groups is None:
            return False
        retries.run(alias, _register, alias, topic, groups)
    return True


def _register(alias: str, topic: str, groups: Collection[ConsumerGroup]) -> None:
    present = highest_offset(alias)  # nothing of the topic is published here before it is announced
    for one in groups:
        if register_at(alias, one.consumer_group, topic, present if one.start else 0):
            mine = ConsumerGroup.objects.using(alias).filter(topic=topic, consumer_group=one.consumer_group)
            mine.update(paused=one.paused, flow=one.flow, flow_overrides=one.flow_overrides)


def carry_on() -> None:
    """Carry on the changes that other processes have left. For DATABASE's shard; one statement if there is none."""
    rows = Topic.objects.using(settings.home).filter(shards__contains=">")
    for topic in rows.values_list("name", flat=True):
        Reshard(topic).step()
