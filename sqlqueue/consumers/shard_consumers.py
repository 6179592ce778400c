"""Which consumers a process of one shard runs."""

from __future__ import annotations

from collections.abc import Sequence

from sqlqueue.conf import settings
from sqlqueue.consumers.registry import Consumer
from sqlqueue.log.placement import existing_placement
from sqlqueue.log.topics import topic_info


def of_shard(consumers: Sequence[Consumer], alias: str) -> list[Consumer]:
    """Return the consumers of topics that have messages on this shard; all of them if it is the only one."""
    if not settings.sharded:
        return list(consumers)
    name = settings.shard_name(alias)
    return [consumer for consumer in consumers if _is_on(consumer.topic, name, alias)]


def _is_on(topic: str, name: str, alias: str) -> bool:
    placed = existing_placement(topic)
    if placed is None:
        return name in settings.shards_of(topic)
    if name in placed.shards:
        topic_info(alias, topic)  # so that this shard knows it while DATABASE's is down
        return True
    return False
