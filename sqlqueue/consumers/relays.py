"""The built-in consumers of relayed messages: each log has one for each other database."""

from __future__ import annotations

from typing import Any

from django.db import Error

from sqlqueue.conf import settings
from sqlqueue.consumers.registry import Consumer, Registry, build
from sqlqueue.core.relay import PREFIX, relay_topic
from sqlqueue.database import retries
from sqlqueue.database.log import Log, all_logs, current_log
from sqlqueue.exceptions import Postpone, Reject, SqlqueueError
from sqlqueue.log.relay import arrive

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
        arrive(current_log(), target, [delivery._attempt.message for delivery in deliveries])
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
        topic = relay_topic(log.alias)
        registry.add(Consumer(topic=topic, handler=bring, **build(topic, OPTIONS)))


def connect(registry: Registry) -> None:
    """Let the registry ask for them."""
    if add_consumers not in registry.sources:
        registry.sources.append(add_consumers)
