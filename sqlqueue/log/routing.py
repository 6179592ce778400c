"""Routing: on which shard a message belongs now, as far as this process knows.

A key goes over to the shard that it has by a later list once its slot is closed on the one that it has by the list
before, which is final; only that shard tells. A process that does not know so publishes there, is refused, and has
learned of it (database.generations.Moved). So nothing has to be told to publishers.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlqueue.conf import settings
from sqlqueue.core.keys import new_id
from sqlqueue.core.shards import ShardList, shard_of
from sqlqueue.database.generations import Placing
from sqlqueue.database.known_layouts import known_layouts
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log.stored_topics import Placement


def present_shard(topic: str, placed: Placement, text: str) -> str:
    """Return the shard of a key, or of a keyless message's id."""
    return list(_way(topic, placed, text))[-1]


def former_shards(topic: str, placed: Placement, text: str) -> list[str]:
    """Return the other shards that a key, or the id of a keyless message, has belonged to, as far as SHARDS names them:
    its messages may be there."""
    way = list(_way(topic, placed, text))
    former = [shard_of(text, each) for each in placed.spread.lists] + way
    return [shard for shard in dict.fromkeys(former) if shard != way[-1] and shard in settings.shards]


def takes_keyless(topic: str, placed: Placement, shard: str) -> bool:
    """Tell whether a shard takes messages without a key: while keys go over, those do that they come from."""
    placing = _placing(topic, shard)
    if placing is None or not placing.lists:
        return shard in placed.shards
    return shard in placing.lists[-2 if placing.going_over else -1]


def any_shard(topic: str, placed: Placement) -> str:
    """Return a shard for a message without a key."""
    return present_shard(topic, placed, new_id())


def newest_list(topic: str, placed: Placement) -> ShardList:
    """Return the newest list of shards of a topic that this process knows of."""
    placings = (_placing(topic, shard) for shard in settings.shards)
    lists = [placing.lists for placing in placings if placing is not None and placing.lists]
    return max([*lists, placed.spread.lists], key=len)[-1]


def has_moved(topic: str, placed: Placement) -> bool:
    """Tell whether the topic's shards were ever changed, as far as this process knows."""
    return len(placed.spread.all_lists) > 1 or newest_list(topic, placed) != placed.shards


def _way(topic: str, placed: Placement, text: str) -> Iterator[str]:
    """Yield the shards of a key by one list after another, until one that it has not left."""
    version = placed.version
    shard = shard_of(text, placed.shards)
    while True:
        _require(topic, shard)
        yield shard
        placing = _placing(topic, shard)
        if placing is None:
            return
        if placing.version(known_layouts(settings.shards[shard]).has_turned(topic, text)) <= version:
            return
        version += 1
        shard = shard_of(text, placing.lists[version])


def _placing(topic: str, shard: str) -> Placing | None:
    return known_layouts(settings.shards[shard]).placings.get(topic) if shard in settings.shards else None


def _require(topic: str, shard: str) -> None:
    if shard not in settings.shards:
        raise ConfigurationError(
            f"topic {topic!r} has messages on shard {shard!r}, which SQLQUEUE['SHARDS'] does not have: name it there,"
            " and restart this process"
        )
