"""Which consumers a process of one shard runs."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from django.db import Error

from sqlqueue.conf import settings
from sqlqueue.consumers.registry import Consumer
from sqlqueue.core.logfmt import logfmt
from sqlqueue.core.shards import spread_from
from sqlqueue.database import retries
from sqlqueue.log.placement import newest_placement
from sqlqueue.log.reshard_state import answering
from sqlqueue.log.topics import topic_info
from sqlqueue.models import Topic

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


def lacks_some(consumers: Sequence[Consumer], served: Sequence[Consumer]) -> bool:
    """Tell whether messages of more of these consumers' topics can come to this process's shard than it serves: keys of
    one go over to it. One statement, on DATABASE's shard; False if that does not answer."""
    missing = {consumer.topic for consumer in consumers} - {consumer.topic for consumer in served}
    if not missing:
        return False
    rows = Topic.objects.using(settings.home).filter(name__in=missing).values_list("shards", flat=True)
    name = settings.shard_name(settings.DATABASE)
    stored: list[str] = answering(settings.home, list, rows) or []
    return any(name in each for text in stored for each in spread_from(text).all_lists)


def _is_on(topic: str, name: str, alias: str) -> bool:
    placed = newest_placement(topic)
    if placed is None:
        return name in settings.shards_of(topic)
    if name in placed.everywhere:
        topic_info(alias, topic)  # so that this shard knows it while DATABASE's is down
        return True
    return False
