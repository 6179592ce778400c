"""The built-in consumers of relayed messages, one on each log for each other database; and which consumers a process of
one database runs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from django.db import Error

from sqlqueue.conf import settings
from sqlqueue.consumers.declare.registry import Consumer, Registry, build
from sqlqueue.core.logfmt import logfmt
from sqlqueue.core.relay import PREFIX, relay_topic
from sqlqueue.database import retries
from sqlqueue.database.log import Log, all_logs, logs_of
from sqlqueue.exceptions import Postpone, Reject, SqlqueueError
from sqlqueue.log.relay import arrive
from sqlqueue.log.topics import existing

logger = logging.getLogger("sqlqueue")

GROUP = "relay"
AWAY = 1.0  # seconds until a database that does not answer is tried again
OPTIONS = {
    "group": GROUP,
    "ordering": "partition",
    "batch": True,
    "batch_size": 200,
    "max_attempts": None,
    "max_backoff": 30.0,
}


def bring(deliveries: Any) -> None:
    """Publish relayed messages on their database. One that does not answer is waited for; what it refuses is a dead
    letter here."""
    target = Log.of(deliveries[0].topic.removeprefix(PREFIX))
    try:
        arrive(deliveries[0]._log, target, [delivery._message for delivery in deliveries])
    except Error as error:
        if retries.unreachable(target, error):
            raise Postpone(f"{target} does not answer: {error}", delay=AWAY) from error
        if retries.classify(error) is retries.ErrorKind.DATA and len(deliveries) == 1:
            raise Reject(f"the database of {target} refuses it: {error}") from error
        raise
    except SqlqueueError as error:
        if len(deliveries) == 1:  # else each is tried by itself
            raise Reject(str(error)) from error
        raise


def add_consumers(registry: Registry) -> None:
    """Register a consumer for each database, and no others that were registered so before."""
    for group_topic in [one for one, made in registry.consumers.items() if made.handler is bring]:
        del registry.consumers[group_topic]
    for log in all_logs() if settings.several else ():
        registry.add(replace(build(relay_topic(log.alias), OPTIONS), handler=bring))


def connect(registry: Registry) -> None:
    """Let the registry ask for them."""
    if add_consumers not in registry.sources:
        registry.sources.append(add_consumers)


def of_database(log: Log, consumers: Sequence[Consumer]) -> list[Consumer] | None:
    """Return the consumers of topics that are on this database, or were (their messages are drained); None,
    with a log line, if it does not answer."""
    if not settings.several:
        return list(consumers)
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
