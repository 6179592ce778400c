"""Which consumers a process of one shard runs."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from django.db import Error

from sqlqueue.conf import settings
from sqlqueue.consumers.registry import Consumer
from sqlqueue.core.logfmt import logfmt
from sqlqueue.database import retries
from sqlqueue.log.placement import existing_placement
from sqlqueue.log.topics import topic_info

logger = logging.getLogger("sqlqueue")


def of_shard(consumers: Sequence[Consumer]) -> list[Consumer] | None:
    """Return the consumers of topics that have messages on this process's shard, all of them if it is the only one;
    None, with a log line, if it does not answer."""
    if not settings.sharded:
        return list(consumers)
    alias = settings.DATABASE
    name = settings.shard_name(alias)
    try:
        return [consumer for consumer in consumers if _is_on(consumer.topic, name, alias)]
    except Error as error:
        if retries.classify(error) is not retries.ErrorKind.GONE:
            raise
        retries.drop_connection(alias)
        logger.warning(logfmt("shard_unreachable", shard=name, error=error, meaning="its messages wait; others flow"))
        return None


def _is_on(topic: str, name: str, alias: str) -> bool:
    placed = existing_placement(topic)
    if placed is None:
        return name in settings.shards_of(topic)
    if name in placed.shards:
        topic_info(alias, topic)  # so that this shard knows it while DATABASE's is down
        return True
    return False
