"""Helpers for the tests of projects that use sqlqueue; they also work inside TestCase."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlqueue.conf import settings
from sqlqueue.consumers.declare.periodic import declared
from sqlqueue.consumers.declare.registry import Consumer, registry
from sqlqueue.consumers.declare.relays import of_database
from sqlqueue.consumers.engine.subscriber import Subscriber, refuse_transaction
from sqlqueue.consumers.handlers.inline import Failures, InlinePool
from sqlqueue.core.effects import with_header
from sqlqueue.core.periodic import tick_id
from sqlqueue.database import clock
from sqlqueue.database.log import Log, all_logs, home_log
from sqlqueue.exceptions import LONGEST_DELAY, ConfigurationError, seconds
from sqlqueue.log.calls import carried_out
from sqlqueue.log.groups import EARLIEST
from sqlqueue.log.publish import publish
from sqlqueue.log.schedule import move_due
from sqlqueue.log.status import move, next_due, with_work
from sqlqueue.models import Message, PeriodicSchedule, ScheduledMessage
from sqlqueue.payloads.versions import callers, content_type_of
from sqlqueue.twins import refuse_in_async


def drain(
    *,
    groups: Iterable[str] = (),
    topics: Iterable[str] = (),
    timeout: float = 30.0,
    raise_errors: bool = False,
    until: datetime | None = None,
    ahead: timedelta | float | None = None,
) -> int:
    """Run every due delivery inline, in this thread and on this connection; return how many settled.

    groups, topics: only of these
    timeout: seconds until TimeoutError is raised
    raise_errors: raise a handler's first error, once its delivery is settled (Retry, Postpone and Reject are none)
    until, ahead: run deliveries and ticks that are due by this aware datetime, or in these seconds, too, in the order
        of their times; no clock is changed

    What handlers raise becomes a retry or a dead letter. A handler is not ended at its visibility timeout. Active hours
    and limits do not hold here. In an async test: `await sync_to_async(drain)()`.
    """
    refuse_in_async("drain", "await sync_to_async(drain)()")
    timeout = seconds(timeout, "timeout")
    registry.discover()
    consumers = registry.select(groups, topics)
    if settings.several:
        if (until, ahead) != (None, None):
            raise ConfigurationError("time cannot be let pass on several databases: leave out until and ahead")
        return _drain_databases(consumers, timeout, Failures(raise_errors))
    log = home_log()
    end = _end(log, until, ahead)
    deadline, failures = time.monotonic() + timeout, Failures(raise_errors)
    with _PassingTime(log, consumers) as passing:
        settled = _run_due(log, consumers, deadline, timeout, failures)
        while end is not None and passing.to_next(end):
            settled += _run_due(log, consumers, deadline, timeout, failures)
    return settled


def _drain_databases(consumers: Sequence[Consumer], timeout: float, failures: Failures) -> int:
    """Drain one database after another, until none has anything left."""
    deadline, settled = time.monotonic() + timeout, 0
    while True:
        before = settled
        for log in all_logs():
            settled += _run_due(log, of_database(log, consumers) or [], deadline, timeout, failures)
        if settled == before:
            return settled


@contextmanager
def answering() -> Iterator[None]:
    """Let call() work inside a TestCase: it runs what is due of its topic inline, as drain() does, and has its reply at
    once, or raises TimeoutError. In an async test, acall() does."""
    with carried_out(lambda topic: drain(topics=[topic])):
        yield


def _end(log: Log, until: datetime | None, ahead: timedelta | float | None) -> datetime | None:
    if until is not None and ahead is not None:
        raise ConfigurationError("give until or ahead, not both")
    if ahead is not None:
        return clock.now(log) + timedelta(seconds=seconds(ahead, "ahead"))
    if until is None:
        return None
    if not isinstance(until, datetime) or until.utcoffset() is None:
        raise ConfigurationError(f"until must be an aware datetime (with a time zone), not {until!r}")
    if until > clock.now(log) + timedelta(seconds=LONGEST_DELAY):
        raise ConfigurationError(f"until must lie within ten years from now, not {until!r}")
    return until


def _let_effects_look(log: Log) -> None:
    """Let effects look for what they are told of after a commit, as in production: in a TestCase that never comes."""
    for effect in with_header():
        effect.committed(log, ())


def _run_due(log: Log, consumers: Sequence[Consumer], deadline: float, timeout: float, failures: Failures) -> int:
    """Run what is due, with those of the consumers whose groups have anything to do: to host a group takes statements
    for each of its partitions. What these publish for the others is found afterwards."""
    refuse_transaction(log)
    settled = 0
    hosted: list[Consumer] = []
    while True:
        moved = False
        while move_due(log):
            moved = True
        if not hosted:
            _let_effects_look(log)
        busy = with_work(log, [(one.group, one.topic) for one in consumers if one.start == EARLIEST])
        others = [one for one in consumers if one not in hosted]
        more = [one for one in others if one.start != EARLIEST or (one.group, one.topic) in busy]
        if not more and not (moved and hosted):  # what has fallen due since may be of those that were hosted
            return settled
        hosted += more
        settled += _run_hosted(log, hosted, deadline, timeout, failures)


def _run_hosted(log: Log, consumers: Sequence[Consumer], deadline: float, timeout: float, failures: Failures) -> int:
    subscriber = Subscriber(
        consumers,
        log=log,
        pool=lambda report, ended: InlinePool(report, ended, failures),
        background_tasks=False,
        limited=False,
    )
    subscriber.start()
    swept = False
    try:
        while failures.ends is None:
            while move_due(subscriber.log):
                pass
            subscriber.renew_leases()
            subscriber.run_once()
            if subscriber.idle and not subscriber.anything_due():
                if swept:
                    break
                swept = True
                _let_effects_look(home_log())
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"deliveries were still due after {timeout:g} s: does a handler retry at once for ever?"
                )
    except KeyboardInterrupt:
        subscriber.stop(timeout=0.0)  # no outcome will be reported for the interrupted handler
        raise
    finally:
        try:
            subscriber.close()
        finally:
            if failures.ends is not None:
                raise failures.ends
    return subscriber.settled


class _PassingTime:
    """Lets time pass in its block by moving all due times nearer, and publishes the ticks of periodic schedules on the
    way. At the end of the block what is still not due has its time again."""

    def __init__(self, log: Log, consumers: Sequence[Consumer]):
        self._log, self._passed = log, timedelta()
        self._reached = self._ticked = clock.now(log)  # what is due by then has run, or waits behind another message
        self._consumed = [(each.group, each.topic) for each in consumers]
        drained = {(topic, name) for group, topic in self._consumed for name in (group, "")}
        wanted = [one for one in declared().values() if (one.topic, one.group) in drained]
        paused = PeriodicSchedule.objects.using(log.alias).filter(paused=True).values_list("name", flat=True)
        names = set(paused) if wanted else set()
        self._schedules = [one for one in wanted if one.name not in names]

    def __enter__(self) -> _PassingTime:
        return self

    def to_next(self, end: datetime) -> bool:
        """Advance to the next due time of what is consumed; return False if that is after the end."""
        due = next_due(self._log, self._consumed, self._reached)
        dues = [one.recurrence.after(self._ticked) for one in self._schedules]
        at = min([*dues, *([] if due is None else [due + self._passed])], default=None)
        if at is None or at > end:
            return False
        step = max(at - self._passed - clock.now(self._log), timedelta())
        if step:
            move(self._log, -step)
        self._passed += step
        self._reached = clock.now(self._log)
        for one in self._schedules:
            for tick in one.recurrence.between(self._ticked, at):
                publish(one.topic, one.payload_of(tick), key=one.key, id=tick_id(one.name, tick), group=one.group)
        self._ticked = max(self._ticked, at)
        return True

    def __exit__(self, *failed: object) -> None:
        if self._passed and not self._log.connection.needs_rollback:
            move(self._log, self._passed)


@dataclass(frozen=True, slots=True)
class PublishedMessage:
    """A message as a test sees it. payload: of bytes, these; content_type: of bytes, None for JSON; offset: in the log,
    None while it is scheduled; due_at: when it enters the log, None once it has; refusal: why a scheduled one cannot
    enter it; group: its target group, "" for all; row: the instance of the model, for everything else."""

    topic: str
    payload: Any
    key: str
    id: str
    headers: dict[str, Any]
    priority: int
    group: str
    offset: int | None
    due_at: datetime | None
    refusal: str
    row: Message | ScheduledMessage
    content_type: str | None = None


def published(topic: str = "") -> list[PublishedMessage]:
    """Return the published messages, of one topic or of all: first those in the log by offset, then the scheduled ones
    by due time; with several databases those of one after another."""
    refuse_in_async("published", "await sync_to_async(published)()")
    named = {"topic": topic} if topic else {}
    found: list[PublishedMessage] = []
    for log in all_logs():
        published = Message.objects.using(log.alias).filter(**named).order_by("offset")
        later = ScheduledMessage.objects.using(log.alias).filter(**named).order_by("due_at", "id")
        found += [_published(message, offset=message.offset, due_at=None, refusal="") for message in published]
        found += [
            _published(message, offset=None, due_at=message.due_at, refusal=message.refusal or "") for message in later
        ]
    return found


def _published(row: Message | ScheduledMessage, **where: Any) -> PublishedMessage:
    return PublishedMessage(
        topic=row.topic,
        payload=row.payload if row.body is None else bytes(row.body),
        key=row.partition_key,
        id=row.message_id or "",  # of plain SQL: it gets one when it enters the log
        headers=callers(row.headers or {}),
        priority=row.priority,
        group=row.target_group,
        row=row,
        content_type=None if row.body is None else content_type_of(row.headers),
        **where,
    )
