"""The status of a message in every group, with results, by topic, key and id (`get_status`)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sqlqueue.conf import settings
from sqlqueue.core.keys import ID_LENGTH, KEY_LENGTH, checked_text
from sqlqueue.core.outcomes import ACKED, DEAD, REPLAYED
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.database.log import Log, home_log
from sqlqueue.database.transactions import in_test_case
from sqlqueue.exceptions import ConfigurationError, InvalidMessage, seconds
from sqlqueue.log import relay
from sqlqueue.log.placement import any_log, first_found
from sqlqueue.log.results import present_progress
from sqlqueue.log.settle_notices import SettleWatch
from sqlqueue.log.topics import require_declared
from sqlqueue.models import ConsumerGroup, Message, Receipt, Result, ScheduledMessage
from sqlqueue.models.topic import TOPIC_COLUMN
from sqlqueue.stats.group_status import (
    IN_FLIGHT,
    RELAYED,
    SCHEDULED,
    WAITING,
    GroupStatus,
    dead_letters,
    ended_as,
    registered_groups,
    settled_as,
    statuses_in,
)
from sqlqueue.twins import async_twin, refuse_in_async

MOST_FOLLOWED = 10  # replays of one message, each of the one before it
MOST_RECEIPTS = 100  # that are read of one message


@dataclass(frozen=True, slots=True)
class MessageStatus:
    """How a message stands, as it was read: ask again for news.

    groups: by name, those that get it (registered for its topic, and its target group); none before any consumer has
    been started. offset: None while it is scheduled; published_at: None once it is collected; due_at: of a scheduled
    message. database: the alias of the one that it is on, or is on its way to; "" if there is one log only.
    """

    topic: str
    id: str
    key: str
    offset: int | None
    published_at: datetime | None
    due_at: datetime | None
    groups: Mapping[str, GroupStatus] = field(default_factory=dict)
    database: str = ""

    @property
    def _log(self) -> Log:
        return Log.of(self.database) if self.database else home_log()

    @property
    def finished(self) -> bool:
        """Whether all its groups are done with it; False if it has none."""
        return bool(self.groups) and all(each.finished for each in self.groups.values())

    def wait(self, timeout: float | timedelta) -> MessageStatus:
        """Wait until all groups are done with it, at most `timeout` seconds; return its status then. The consumer
        process that settles it sends a notice; without one the tables are read again after 10 ms to
        IDLE_POLL_INTERVAL. A message that leaves the log meanwhile counts as done with: it was collected, or an
        operator has deleted it.

        Raises TimeoutError; ConfigurationError inside a transaction of the queue's database, which would wait for
        itself; and Django's SynchronousOnlyOperation on an event loop.
        """
        refuse_in_async("wait", "await sync_to_async(status.wait)(timeout=…)")
        end = time.monotonic() + seconds(timeout, "timeout")
        status = self._fresh()
        if status.finished:
            return status
        _refuse_transaction(self._log)
        pause: float = settings.POLL_INTERVAL
        with closing(SettleWatch(self._log, self.topic)) as watch:
            while True:
                if status.offset is not None:
                    watch.ask(status.offset)  # before the read, which shows what was settled until now
                status = status._fresh()
                if status.finished:
                    return status
                left = end - time.monotonic()
                if left <= 0:
                    raise TimeoutError(
                        f"message {self.id!r} of topic {self.topic!r} is not settled in every group after {timeout} "
                        f"(seconds): see get_status({self.topic!r}, id={self.id!r}, key={self.key!r})"
                    )
                watch.wait(min(pause, left))
                pause = min(2 * pause, settings.IDLE_POLL_INTERVAL)

    def _fresh(self) -> MessageStatus:
        """Return its present status. One that was in the log and is unknown now has been collected, so every group is
        done with it."""
        fresh = get_status(self.topic, id=self.id, key=self.key)
        if fresh is not None or self.offset is None:
            return fresh or replace(self, groups={})
        return replace(self, groups=_after_collection(self._log, self))


def _refuse_transaction(log: Log) -> None:
    connection = log.connection
    if in_test_case(connection):
        raise ConfigurationError("in a TestCase nothing is delivered by itself: call sqlqueue.testing.drain() first")
    if connection.in_atomic_block or not connection.get_autocommit():
        raise ConfigurationError(
            "wait() inside a transaction would wait for ever for what this has published, and hold its locks meanwhile:"
            " call it after the commit (and outside of ATOMIC_REQUESTS)"
        )


def get_status(topic: str, *, id: str, key: str = "") -> MessageStatus | None:
    """Return a message's status in every group, or None if it was never published, was cancelled, or was collected.

    It takes at most fifteen statements, and as many for each replay. One that is on its way
    from another database is `relayed`.

    Raises InvalidMessage for a topic, an id or a key that no message can have, and ConfigurationError for an
    undeclared topic.
    """
    refuse_in_async("get_status", "await aget_status(…)")
    if checked_text(id, "id", ID_LENGTH) == "":
        raise InvalidMessage("id is empty: a message without an id of its own gets one, which publish returns")
    checked_text(key, "key", KEY_LENGTH)
    checked_text(topic, "topic", TOPIC_COLUMN)
    require_declared(any_log(topic), topic)
    return _anywhere(topic, id, key, 0)


def _anywhere(topic: str, id: str, key: str, followed: int) -> MessageStatus | None:
    """followed: how many replays have led to this message."""
    of_it: dict[str, Any] = {"topic": topic, "id": id, "key": key, "followed": followed}
    # What is kept of an earlier message of this id may be on a former database, and must not be taken for this one.
    find = partial(first_found, partial(_present, **of_it), topic, key, id, afterwards=partial(_collected, **of_it))
    found: MessageStatus | None = find()
    if found is None and settings.several:
        found = _relayed(topic, id, key) or find()  # once more: it may have arrived in between
    return found


def _present(log: Log, topic: str, id: str, key: str, followed: int) -> MessageStatus | None:
    """Return the status of a message that is in the log, or scheduled."""
    # The schedule first: a message may move from there into the log in between.
    scheduled = _scheduled(log, topic, id, key)
    message = Message.objects.using(log.alias).of_id(topic, id, key)
    for found in message.without_content()[:1]:  # not first(), which would walk the primary key
        return status_of(log, found, followed)
    return scheduled


aget_status = async_twin(get_status)


def status_of(log: Log, message: Message, followed: int = 0) -> MessageStatus:
    """Return the status of a message that is in the log. At most twelve statements, and fifteen for each replay.
    followed: how many replays have led to it."""
    of_topic = registered_groups(log, [message.topic])
    registered = of_topic[message.topic]
    found = statuses_in(log, [message], of_topic)[message.offset]
    # After the delivery states: what these say was acked has its result.
    kept = _results(log, message.topic, message.message_id, message.partition_key)
    results = {row.consumer_group: row for row in kept if row.message_offset == message.offset}
    settled = {one.group for one in found if one.finished}
    acked = {name for name, row in results.items() if row.outcome == ACKED}
    receipts = _receipts(log, message.offset, settled - acked)
    running = any(one.state == IN_FLIGHT for one in found)
    reported = present_progress(log, message.offset, message.partition, message.priority) if running else {}
    groups: dict[str, GroupStatus] = {}
    for one in found:
        if one.group not in settled:
            shown = reported.get(one.group) if one.state == IN_FLIGHT else None
            groups[one.group] = replace(one, progress=shown)
        elif one.group in results:
            groups[one.group] = _of_result(results[one.group], one.dead_letter)
        elif one.group in receipts or one.dead_letter is not None or message.offset > registered[one.group].start:
            groups[one.group] = _with_receipt(one, receipts.get(one.group))
        # else it was published before the group began
    if message.target_group and message.target_group not in registered:
        groups[message.target_group] = GroupStatus(message.target_group, WAITING)
    groups = _with_replays(message.topic, message.partition_key, groups, receipts, followed)
    named = message.topic, message.message_id, message.partition_key
    return MessageStatus(*named, message.offset, message.created_at, None, groups, log.label)


def _after_collection(log: Log, status: MessageStatus) -> dict[str, GroupStatus]:
    """Return what is known of a message that was collected while its status was read again and again."""
    gone = Message(topic=status.topic, offset=status.offset, partition_key=status.key)
    dead = dead_letters(log, [(gone, list(status.groups))])
    receipts = _receipts(log, gone.offset, set(status.groups))
    ended = {name: settled_as(name, dead.get((gone.offset, name))) for name in status.groups}
    groups = {name: _with_receipt(one, receipts.get(name)) for name, one in ended.items()}
    return _with_replays(status.topic, status.key, groups, receipts, 0)


def _with_replays(
    topic: str, key: str, groups: dict[str, GroupStatus], receipts: Mapping[str, Receipt], followed: int
) -> dict[str, GroupStatus]:
    """Return the status by group, for those whose dead letter was replayed with how the copy stands."""
    replayed = {
        name: receipts[name].worker
        for name, one in groups.items()
        if one.dead_letter is None and one.finished and name in receipts and receipts[name].outcome == REPLAYED
    }
    for name, id in replayed.items():
        state = WAITING  # of more replays than are followed
        if followed < MOST_FOLLOWED:
            copy = _anywhere(topic, id, key, followed + 1)
            there = copy.groups.get(name) if copy is not None else None
            state = ACKED if there is None else there.copy_state or there.state
        groups[name] = replace(groups[name], state=REPLAYED, replayed_as=(id, key), copy_state=state)
    return groups


def _scheduled(log: Log, topic: str, id: str, key: str) -> MessageStatus | None:
    rows = ScheduledMessage.objects.using(log.alias).of_id(topic, id, key)
    row = next(iter(rows.only("target_group", "due_at", "created_at", "refusal")[:1]), None)
    if row is None:
        return None
    state = GroupStatus("", SCHEDULED, error=row.refusal or "", next_attempt_at=row.due_at)
    groups = _groups(log, topic, row.target_group, state)
    return MessageStatus(topic, id, key, None, row.created_at, row.due_at, groups, log.label)


def _relayed(topic: str, id: str, key: str) -> MessageStatus | None:
    """Return the status of a message that is on its way to its database."""
    if (found := relay.waiting(topic, key, id)) is None:
        return None
    groups = _groups(found.target, topic, found.group, GroupStatus("", RELAYED))
    return MessageStatus(topic, id, key, None, found.message.created_at, None, groups, found.target.alias)


def _groups(log: Log, topic: str, target: str, state: GroupStatus) -> dict[str, GroupStatus]:
    """Return how a message that is not in the log yet stands in the groups that get it: all as this one."""
    registered = ConsumerGroup.objects.using(log.alias).filter(topic=topic).order_by("consumer_group")
    names = [target] if target else registered.values_list("consumer_group", flat=True)
    return {name: replace(state, group=name) for name in names}


def _collected(log: Log, topic: str, id: str, key: str, followed: int) -> MessageStatus | None:
    """Return what the kept results say of a message that is not in the log any more."""
    rows = _results(log, topic, id, key)
    if not rows:
        return None
    offset = max(row.message_offset for row in rows)
    groups = {row.consumer_group: _of_result(row) for row in rows if row.message_offset == offset}
    receipts = _receipts(log, offset, {name for name, one in groups.items() if one.state != ACKED})
    groups = _with_replays(topic, key, groups, receipts, followed)
    return MessageStatus(topic, id, key, offset, None, None, groups, log.label)


def _results(log: Log, topic: str, id: str, key: str) -> list[Result]:
    rows = Result.objects.using(log.alias).filter(message_id=id, topic=topic, partition_key=key)
    return list(rows.filter(expires_at__gt=DatabaseNow()).order_by("consumer_group"))


def _receipts(log: Log, offset: int, groups: set[str]) -> dict[str, Receipt]:
    """Return the last receipt of each of these groups that says how the message ended."""
    if not groups:
        return {}
    rows = Receipt.objects.using(log.alias).filter(message_offset=offset, consumer_group__in=groups)
    ends = rows.filter(outcome__in=(ACKED, DEAD, REPLAYED)).order_by("-id")[:MOST_RECEIPTS]
    return {row.consumer_group: row for row in reversed(list(ends))}


def _with_receipt(settled: GroupStatus, receipt: Receipt | None) -> GroupStatus:
    """Return the status of a settled message with what its last receipt adds."""
    if receipt is None:
        return settled
    settled = replace(settled, started_at=receipt.started_at, finished_at=receipt.finished_at)
    if settled.dead_letter is not None:
        return settled
    # A receipt of a replay is one of a death, until _with_replays says more.
    return replace(settled, state=ended_as(receipt.outcome), attempts=receipt.attempts)


def _of_result(row: Result, dead_letter: int | None = None) -> GroupStatus:
    error = row.error or ""
    return GroupStatus(
        row.consumer_group,
        ended_as(row.outcome, error),
        row.attempts,
        row.result,
        error,
        started_at=row.started_at,
        finished_at=row.finished_at,
        dead_letter=dead_letter,
    )
