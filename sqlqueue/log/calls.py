"""Request and reply: `call` publishes a message, and waits for what its handler returns.

There is no topic for replies. The message says in a header that its publisher waits; so the settle stores what came of
it with the kept results (`sqlqueue_result`), in the transaction of the ack. The caller reads it there, woken by a
settle notice. What a caller does not fetch any more is collected as every result whose time is over.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing, contextmanager
from datetime import timedelta
from itertools import chain
from typing import Any

from asgiref.sync import sync_to_async
from django.db import Error

from sqlqueue.conf import settings
from sqlqueue.core.codec import as_text, decode
from sqlqueue.core.new_message import NewMessage
from sqlqueue.core.outcomes import ACKED, DEAD
from sqlqueue.database.log import Log, home_log
from sqlqueue.database.retries import ErrorKind, classify, drop_connection
from sqlqueue.database.transactions import in_test_case
from sqlqueue.exceptions import CallFailed, ConfigurationError, seconds
from sqlqueue.log.collect import watermarks
from sqlqueue.log.placement import destination
from sqlqueue.log.publish import publish_message
from sqlqueue.log.settle_notices import SettleWatch
from sqlqueue.models import ConsumerGroup, Message, Result
from sqlqueue.twins import refuse_in_async

FETCHED_WITHIN = 60.0  # seconds for which a reply is stored beyond the caller's timeout
ASK_GROUPS_EVERY = 1.0  # seconds after which a caller looks whether the groups have settled it without a reply
# Index: (message_id, topic, partition_key, consumer_group).
REPLIES = """
    SELECT consumer_group, outcome, result, error FROM sqlqueue_result
    WHERE message_id = %s AND topic = %s AND partition_key = %s ORDER BY finished_at, id
"""
UNHANDLED = (
    "no handler gets it: the filter (where=) of each group leaves it out, or it was settled or deleted by hand, or by a"
    " consumer process of a version that does not know calls"
)
_carry_out: list[Callable[[str], object]] = []  # in tests: delivers what is due of a topic


class Call:
    """A message that has been published, whose publisher waits.

    value: what its handler has returned, once that is known
    """

    value: Any = None

    def __init__(self, topic: str, message: NewMessage, timeout: float | timedelta):
        within = seconds(timeout, "timeout")
        self._topic, self._timeout, self._end = topic, timeout, time.monotonic() + within
        self._key, self._group = message.key, message.group
        self._pause: float = settings.POLL_INTERVAL
        self._ask_groups_at = time.monotonic() + ASK_GROUPS_EVERY
        message.unique_for = False  # each call is its own
        self._log = home_log()
        if settings.several:
            self._log = destination(topic, message.key, message.id, relay=False).log
        in_test = _refuse_transaction(self._log)
        self.watch = SettleWatch(self._log, topic)
        try:
            published = publish_message(topic, message, within + FETCHED_WITHIN, log=self._log)
        except BaseException:
            self.watch.close()
            raise
        self._id, self._offset = published.id, published.offset or 0
        if in_test:
            _carry_out[-1](topic)
            self._end = time.monotonic()

    def close(self) -> None:
        """Close its socket."""
        self.watch.close()

    def look(self) -> bool:
        """Tell whether it is known what came of it: `value`. A connection that is lost meanwhile is opened anew by the
        next look. Raises CallFailed for a failure, and TimeoutError once the time is over."""
        over = time.monotonic() >= self._end
        try:
            known = False
            if self._in_log():
                self.watch.ask(self._offset)  # before the reads, which show what was settled until now
                known = self._read(over)
        except Error as error:
            if over or classify(error) not in (ErrorKind.GONE, ErrorKind.CONTENTION):
                raise
            drop_connection(self._log)
            return False
        if over and not known:
            raise TimeoutError(self._no_reply())
        return known

    def _in_log(self) -> bool:
        """Tell whether the message has entered the log: it may have been forwarded. If it has left the log since, its
        reply tells where it was."""
        if not self._offset:
            topic, id, key = self._topic, self._id, self._key
            there = Message.objects.using(self._log.alias).of_id(topic, id, key)
            left = Result.objects.using(self._log.alias).filter(topic=topic, message_id=id, partition_key=key)[:1]
            found = chain(there.values_list("offset", flat=True), left.values_list("message_offset", flat=True))
            self._offset = next(found, 0)
        return bool(self._offset)

    def _read(self, over: bool) -> bool:
        passed: set[str] = set()
        gone = False
        if over or time.monotonic() >= self._ask_groups_at:
            self._ask_groups_at = time.monotonic() + ASK_GROUPS_EVERY
            passed, gone = self._passed()  # before the results, which these groups have stored with that, or never will
        found = self._log.execute(REPLIES, (self._id, self._topic, self._key)).fetchall()
        failed = [(group, error or "") for group, outcome, _, error in found if outcome == DEAD]
        for _, outcome, result, _ in found:
            if outcome == ACKED and (text := as_text(result)) is not None:
                self.value = decode(text)
                return True
        settled = passed.union(group for group, *_ in found)
        complete = gone or bool(settled and not self._registered() - settled)
        if complete and not found:
            failed = [("", UNHANDLED)]
        if failed and (complete or over):
            raise CallFailed(self._topic, self._id, self._key, *failed[0])
        return complete

    def pause(self) -> float:
        """Return for how many seconds to wait before the next look, unless a notice comes."""
        pause = min(self._pause, self._end - time.monotonic())
        self._pause = min(2 * self._pause, settings.IDLE_POLL_INTERVAL)
        return max(pause, 0.0)

    def _registered(self) -> set[str]:
        """Return the groups that get the message."""
        if self._group:
            return {self._group}
        registered = ConsumerGroup.objects.using(self._log.alias).filter(topic=self._topic, start__lt=self._offset)
        return set(registered.values_list("consumer_group", flat=True))

    def _passed(self) -> tuple[set[str], bool]:
        """Return the groups that get the message and have settled all up to it; and whether it has left the log."""
        stored = Message.objects.using(self._log.alias).filter(offset=self._offset).values_list("partition", "priority")
        for stream in stored:
            reached = watermarks(self._log, self._topic, [stream])
            settled = {group for group, acked in reached.items() if acked[stream] >= self._offset}
            return settled & self._registered(), False
        return set(), True

    def _no_reply(self) -> str:
        named = f"the call of topic {self._topic!r}, message {self._id!r}, has no reply after {self._timeout}"
        groups = ConsumerGroup.objects.using(self._log.alias).filter(topic=self._topic)
        known = sorted(groups.values_list("consumer_group", flat=True))
        if not known:
            return (
                f"{named} (seconds): no group of the topic is registered (no consumer has been started, or its groups "
                "were removed); the message waits for one"
            )
        if self._group and self._group not in known:
            return (
                f"{named} (seconds): group {self._group!r} is not registered (no consumer of it has been started, or it"
                f" was removed); the message waits for it. Groups of the topic: {', '.join(known)}"
            )
        return (
            f"{named} (seconds), and may still be handled: see get_status({self._topic!r}, id={self._id!r}, "
            f"key={self._key!r})"
        )


def call(
    topic: str,
    payload: Any,
    *,
    timeout: float | timedelta,
    key: str = "",
    headers: dict[str, Any] | None = None,
    priority: int = 0,
    group: str = "",
    content_type: str | None = None,
    expires: float | timedelta | None = None,
) -> Any:
    """Publish a message, wait for the reply of its handler, and return it; None if every group acks without one.

    timeout: seconds or a timedelta to wait
    expires: as in publish: the message is not handled any more once the caller has given up
    key, headers, priority, group, content_type: as in publish

    Raises CallFailed if the message is a dead letter, or no handler gets it; TimeoutError, after which it may still be
    handled; ConfigurationError in a transaction of the queue's database; and what publish raises.
    """
    refuse_in_async("call", "await acall(…)")
    message = NewMessage(
        payload,
        key=key,
        headers=headers,
        priority=priority,
        group=group,
        content_type=content_type,
        expires=expires,
    )
    with closing(Call(topic, message, timeout)) as published:
        while not published.look():
            published.watch.wait(published.pause())
        return published.value


async def acall(
    topic: str,
    payload: Any,
    *,
    timeout: float | timedelta,
    key: str = "",
    headers: dict[str, Any] | None = None,
    priority: int = 0,
    group: str = "",
    content_type: str | None = None,
    expires: float | timedelta | None = None,
) -> Any:
    """The async twin of call. While it waits it holds no thread: several of one task wait side by side."""
    message = NewMessage(
        payload,
        key=key,
        headers=headers,
        priority=priority,
        group=group,
        content_type=content_type,
        expires=expires,
    )
    with closing(await sync_to_async(Call)(topic, message, timeout)) as published:
        look = sync_to_async(published.look)
        while not await look():
            await published.watch.wait_async(published.pause())
        return published.value


def _refuse_transaction(log: Log) -> bool:
    """Raise ConfigurationError inside a transaction; return whether this is a TestCase that answers calls."""
    connection = log.connection
    if in_test_case(connection):
        if not _carry_out:
            raise ConfigurationError(
                "in a TestCase nothing is delivered by itself: call inside `with sqlqueue.testing.answering():`"
            )
        return True
    if connection.in_atomic_block or not connection.get_autocommit():
        raise ConfigurationError(
            "call() inside a transaction would wait for ever for the reply to what no consumer can see yet, and "
            "hold its locks meanwhile: call it outside of transaction.atomic() and ATOMIC_REQUESTS, or publish() and "
            "let a handler go on"
        )
    return False


@contextmanager
def carried_out(by: Callable[[str], object]) -> Any:
    """Let `by` deliver what is due of a topic, in calls inside a TestCase's transaction: for sqlqueue.testing."""
    _carry_out.append(by)
    try:
        yield
    finally:
        _carry_out.remove(by)
