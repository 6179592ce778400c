"""For the tests of projects that use sqlqueue; also inside TestCase."""

from __future__ import annotations

import time
from collections.abc import Iterable

from sqlqueue.conf import settings
from sqlqueue.consumers.pool import InlinePool
from sqlqueue.consumers.registry import registry
from sqlqueue.consumers.subscriber import Subscriber
from sqlqueue.exceptions import seconds
from sqlqueue.log.schedule import move_due
from sqlqueue.models import Message


def drain(*, groups: Iterable[str] = (), topics: Iterable[str] = (), timeout: float = 30.0) -> int:
    """Run every due delivery inline, in this thread and on this connection, until nothing is due; return how many
    settled.

    What is due later (a retry with a delay, a scheduled message) stays. Handlers see what the test has written, inside
    TestCase too; what they raise becomes a retry or a dead letter, as in production. Raises TimeoutError after
    `timeout` seconds: a handler that always retries at once never ends.
    """
    timeout = seconds(timeout, "timeout")
    registry.discover()
    subscriber = Subscriber(registry.select(groups, topics), pool=InlinePool, residents=False)
    deadline = time.monotonic() + timeout
    subscriber.start()
    try:
        while True:
            while move_due(subscriber.alias):
                pass
            subscriber.keep()
            subscriber.turn()
            if subscriber.idle and not subscriber.anything_due():
                break
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"deliveries were still due after {timeout:g} s: does a handler retry at once for ever?"
                )
    finally:
        subscriber.close()
    return subscriber.settled


def published(topic: str = "") -> list[Message]:
    """Return what is in the log now, oldest first: of one topic, or of all. Payloads and headers are decoded."""
    messages = Message.objects.using(settings.DATABASE).order_by("offset")
    return list(messages.filter(topic=topic) if topic else messages)
