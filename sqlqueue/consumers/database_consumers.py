"""Which consumers a process of one database runs."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from django.db import Error

from sqlqueue.conf import settings
from sqlqueue.consumers.registry import Consumer
from sqlqueue.core.logfmt import logfmt
from sqlqueue.core.relay import relay_topic
from sqlqueue.database import retries
from sqlqueue.database.log import current_log, logs_of
from sqlqueue.log.topics import existing

logger = logging.getLogger("sqlqueue")


def of_database(consumers: Sequence[Consumer]) -> list[Consumer] | None:
    """Return the consumers of topics that are on this process's database, or were (their messages are drained); None,
    with a log line, if it does not answer."""
    if not settings.several:
        return list(consumers)
    log = current_log()
    try:
        there = existing(log, {consumer.topic for consumer in consumers})
    except Error as error:
        if retries.classify(error) is not retries.ErrorKind.GONE:
            raise
        retries.drop_connection(log)
        logger.warning(
            logfmt("database_unreachable", database=log.alias, error=error, meaning="its messages wait; others flow")
        )
        return None
    mine = relay_topic(log.alias)  # which other logs have
    return [one for one in consumers if one.topic != mine and (one.topic in there or log in logs_of(one.topic))]
