"""Grants: a group starts on a shard what comes there by another list of shards, once it has settled, on every shard
that its keys can have come from, all that went there before.

Each of those grants it, under the lock of its topic's row: its end is known, and the group's watermark has reached it.
What lets a watermark fall there takes that back first: the grant gets a number, the later shard lets the group's leases
wait again, with greater tokens, and only while the number is still that one the watermark falls. The later shard counts
how often that was done: a grant that was asked for before does not count any more. Any process may die in between.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeVar

from django.db import Error
from django.db.models import F

from sqlqueue.conf import settings
from sqlqueue.core.shards import SEPARATOR
from sqlqueue.database import retries
from sqlqueue.exceptions import Unreachable
from sqlqueue.log import layouts
from sqlqueue.log.granted import GrantsLeft, revocation
from sqlqueue.log.succession import unfinished
from sqlqueue.models import ConsumerGroup, EpochGrant, EpochStart, Layout, Offset, PartitionLease, Topic
from sqlqueue.models.partition_lease import WAITS

T = TypeVar("T")

UNREGISTERED: Final = "unregistered"
TURNING: Final = "turning"
BEHIND: Final = "behind"
TRIES: Final = 20
NUMBERS: Final = 2**62


class Sought(NamedTuple):
    """How many grants were new, and how many are still missing."""

    granted: int
    missing: int


# -- of the shard that a group is about to start on -------------------------------------------------------------------


def seek(alias: str, source: str) -> Sought:
    """Ask a shard, by its name, for what the groups of this one need of it. One statement while the shards of no topic
    were changed. Raises the database's error if that shard does not answer."""
    missing = list(_missing(alias, source))
    granted = sum(_ask(alias, source, *one) for one in missing)
    return Sought(granted, len(missing) - granted)


def waits(alias: str) -> bool:
    """Tell whether a group needs a grant of another shard, to start what comes to this one."""
    names = (name for name, other in settings.shards.items() if other != alias)
    return any(True for name in names for _ in _missing(alias, name))


def _missing(alias: str, source: str) -> Iterator[tuple[str, str, int, int]]:
    """Yield the (group, topic, version) for which a shard has not granted what it has to, and how often grants were
    revoked."""
    here = settings.shard_name(alias)
    topics = Layout.objects.using(alias).exclude(shards="").order_by("topic").values_list("topic", flat=True)
    for topic in topics.distinct():
        versions = {
            epoch.version
            for epoch in layouts.epochs(alias, topic)
            if source in epoch.sources(here) and epoch.is_on(here)
        }
        if not versions:
            continue
        groups = ConsumerGroup.objects.using(alias).filter(topic=topic).order_by("consumer_group")
        rows = EpochStart.objects.using(alias).filter(topic=topic)
        known = {(row.consumer_group, row.version): row for row in rows}
        for group in groups.values_list("consumer_group", flat=True):
            for version in sorted(versions):
                row = known.get((group, version))
                if row is None or source not in row.granted.split(SEPARATOR):
                    yield group, topic, version, 0 if row is None else row.revoked


def seek_everywhere(alias: str) -> int:
    """Ask all other shards; return how many grants were new."""
    return sum(seek(alias, name).granted for name, other in settings.shards.items() if other != alias)


def _ask(alias: str, source: str, group: str, topic: str, version: int, revoked: int) -> bool:
    here, target = settings.shard_name(alias), settings.shards[source]
    if not retries.run(target, _grant, target, group, topic, version, here):
        return False
    return retries.run(alias, _store, alias, source, group, topic, version, revoked)


def _store(alias: str, source: str, group: str, topic: str, version: int, revoked: int) -> bool:
    """Count a grant, unless one was taken back since before it was asked for."""
    _lock(alias, topic)
    row, _ = EpochStart.objects.using(alias).get_or_create(topic=topic, consumer_group=group, version=version)
    if row.revoked != revoked:
        return False
    row.granted = SEPARATOR.join(sorted({*filter(None, row.granted.split(SEPARATOR)), source}))
    row.save(using=alias, update_fields=["granted"])
    return True


# -- of a shard that its keys have come from --------------------------------------------------------------------------


def _grant(alias: str, group: str, topic: str, version: int, shard: str) -> bool:
    """Grant a group to start what a shard has by this version of the list of shards, if all of it that went here before
    is settled."""
    if not _lock(alias, topic):
        return True  # nothing of the topic is here any more
    if obstacle(alias, group, topic, version):
        return False
    row, _ = EpochGrant.objects.using(alias).get_or_create(
        topic=topic, consumer_group=group, shard=shard, version=version
    )
    return row.revoking == 0


def obstacle(alias: str, group: str, topic: str, version: int) -> str:
    """Return why this shard does not let a group start, on others, what they have by a version of the list of shards:
    the group is not registered here (UNREGISTERED), the shard has not gone over (TURNING), or the group has something
    left to settle (BEHIND); "" for nothing. It changes nothing. The topic has to be there."""
    registered = ConsumerGroup.objects.using(alias).filter(topic=topic, consumer_group=group).first()
    if registered is None:
        return UNREGISTERED  # it may begin here yet, with the oldest message
    here, epochs = settings.shard_name(alias), layouts.epochs(alias, topic)
    if epochs[-1].version < version and epochs[-1].is_on(here):
        return TURNING
    earlier = [epoch for epoch in epochs if epoch.version < version and epoch.is_on(here)]
    if any(epoch.end is None for epoch in earlier):
        return TURNING
    numbers = {number for epoch in earlier for number in epoch.numbers}
    priorities = Topic.objects.using(alias).values_list("priorities", flat=True).get(name=topic)
    return BEHIND if numbers and unfinished(alias, registered, priorities, epochs, numbers) else ""


def without(alias: str, group: str, topic: str, operation: Callable[..., T], *args: Any) -> T:
    """Run an operation, in a transaction, that may let watermarks of a group fall on this shard; the group is stopped
    first where it has begun what follows on other shards.

    Raises Unreachable if such a shard does not answer: nothing was changed then.
    """
    if not settings.sharded:
        return retries.run(alias, operation, *args)
    for _ in range(TRIES - 1):
        try:
            with revocation(_revoke_elsewhere(alias, group, topic)):
                return retries.run(alias, operation, *args)
        except GrantsLeft:  # given since, or another process takes them back, too
            continue
    with revocation(_revoke_elsewhere(alias, group, topic)):
        return retries.run(alias, operation, *args)


def end_revocations(alias: str, source: str) -> None:
    """Take the grants of a shard back that another process has begun to take back, and has not: it may have died. That
    shard is not asked while the shards of no topic of this one were changed: then it has granted nothing."""
    if not Layout.objects.using(alias).exclude(shards="").exists():
        return
    target, here = settings.shards[source], settings.shard_name(alias)
    rows = EpochGrant.objects.using(target).filter(shard=here).exclude(revoking=0)
    for group, topic in set(rows.values_list("consumer_group", "topic")):
        number = _revoke_elsewhere(target, group, topic)
        retries.run(target, _forget, target, group, topic, number)


def _forget(alias: str, group: str, topic: str, number: int) -> None:
    _lock(alias, topic)
    EpochGrant.objects.using(alias).filter(topic=topic, consumer_group=group, revoking=number).delete()


def _revoke_elsewhere(alias: str, group: str, topic: str) -> int:
    """Stop a group on the shards to which this one has granted something; return the number that the grants have now,
    0 if there are none."""
    rows = EpochGrant.objects.using(alias).filter(topic=topic, consumer_group=group)
    if not rows.exists():
        return 0
    number = random.randint(1, NUMBERS)
    granted = retries.run(alias, _mark, alias, group, topic, number)
    for shard, version in granted:
        if shard not in settings.shards:
            continue
        target = settings.shards[shard]
        try:
            retries.run(target, _stop, target, group, topic, version)
        except Error as error:
            if retries.classify(error) is not retries.ErrorKind.GONE:
                raise
            retries.drop_connection(target)
            raise Unreachable(
                f"group {group!r} has begun topic {topic!r} on shard {shard!r}, which does not answer, and has to stop"
                " there first, or it would get messages of a key out of order: nothing was changed"
            ) from error
    return number


def _mark(alias: str, group: str, topic: str, number: int) -> list[tuple[str, int]]:
    _lock(alias, topic)
    rows = EpochGrant.objects.using(alias).filter(topic=topic, consumer_group=group)
    rows.update(revoking=number)
    return list(rows.order_by("version", "shard").values_list("shard", "version"))


def _stop(alias: str, group: str, topic: str, version: int) -> None:
    """Let a group's leases of the epochs from this version on wait, with greater tokens: their holders can settle
    nothing any more. No grant counts that was asked for before."""
    if not _lock(alias, topic):
        return
    leases = PartitionLease.objects.using(alias).filter(topic=topic, consumer_group=group)
    # As groups.revoke: leases before offsets, and before the first plain read.
    found = dict(leases.select_for_update().order_by("partition", "slice").values_list("id", "partition"))
    row, _ = EpochStart.objects.using(alias).get_or_create(topic=topic, consumer_group=group, version=version)
    EpochStart.objects.using(alias).filter(pk=row.pk).update(revoked=F("revoked") + 1, granted="")
    numbers = {n for epoch in layouts.epochs(alias, topic) if epoch.version >= version for n in epoch.numbers}
    ids = [id for id, number in found.items() if number in numbers]
    if ids:
        leases.filter(id__in=ids).update(fencing_token=F("fencing_token") + 1, holder=WAITS, valid_until=None)
    offsets = Offset.objects.using(alias).filter(topic=topic, consumer_group=group, partition__in=numbers)
    offsets.update(fencing_token=F("fencing_token") + 1)


def _lock(alias: str, topic: str) -> bool:
    """Lock a topic's row until the transaction ends; False if there is none."""
    return Topic.objects.using(alias).select_for_update().filter(name=topic).first() is not None
