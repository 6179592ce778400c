"""Finds and moves the times at which scheduled messages and deliveries are due: for `sqlqueue.testing`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from sqlqueue.database.clock import moment
from sqlqueue.database.log import Log

# The next due time. Index: (refused, due_at); the states' unique key.
NEXT_MESSAGE = "SELECT {epoch} FROM sqlqueue_scheduled_message WHERE refused = {false} AND due_at > %s"
NEXT_DELIVERY = """
    SELECT {epoch} FROM sqlqueue_delivery_state WHERE topic = %s AND consumer_group = %s
    AND acked = {false} AND in_flight = 0 AND invisible_until > %s
"""
MOVE_MESSAGES = "UPDATE sqlqueue_scheduled_message SET due_at = {moved} WHERE refused = {false}"
MOVE_DELIVERIES = "UPDATE sqlqueue_delivery_state SET invisible_until = {moved} WHERE acked = {false}"
MOVE_ENDS = "UPDATE sqlqueue_message SET expires_at = {moved} WHERE expires_at IS NOT NULL"


def next_due(log: Log, group_topics: Iterable[tuple[str, str]], after: datetime) -> datetime | None:
    """Return when, after a time, a scheduled message or a delivery of one of these (group, topic) is due, in UTC; None
    for never."""
    syntax = log.dialect
    text, time = NEXT_DELIVERY.replace("{epoch}", syntax.epoch("MIN(invisible_until)")), syntax.time(after)
    found = [log.execute(NEXT_MESSAGE.replace("{epoch}", syntax.epoch("MIN(due_at)")), (time,)).fetchone()]
    found += [log.execute(text, (topic, group, time)).fetchone() for group, topic in group_topics]
    return min((moment(value) for (value,) in found if value is not None), default=None)


def move(log: Log, by: timedelta) -> None:
    """Move the due time of everything that is scheduled or delayed, and the time at which messages expire, by `by`,
    which may be negative."""
    syntax, microseconds = log.dialect, by // timedelta(microseconds=1)
    moved = ((MOVE_MESSAGES, "due_at"), (MOVE_DELIVERIES, "invisible_until"), (MOVE_ENDS, "expires_at"))
    for text, column in moved:
        log.execute(text.replace("{moved}", syntax.moved(column)), (microseconds,))
