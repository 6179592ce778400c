"""Waits until a message is settled in every group: by settle notices, and by reading its status again."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from sqlqueue.conf import settings
from sqlqueue.database.log import Log
from sqlqueue.database.transactions import in_test_case
from sqlqueue.exceptions import ConfigurationError, seconds
from sqlqueue.log.settle_notices import SettleWatch
from sqlqueue.twins import refuse_in_async

if TYPE_CHECKING:
    from sqlqueue.stats.message_status import MessageStatus


def until_finished(
    log: Log, status: MessageStatus, read: Callable[[MessageStatus], MessageStatus], timeout: float | timedelta
) -> MessageStatus | None:
    """Return the status once it is finished, or None if it is not after so many seconds. read: returns the present
    status from the last one.

    Raises ConfigurationError inside a transaction, and SynchronousOnlyOperation on an event loop.
    """
    refuse_in_async("wait", "await sync_to_async(status.wait)(timeout=…)")
    end = time.monotonic() + seconds(timeout, "timeout")
    status = read(status)
    if status.finished:
        return status
    _refuse_transaction(log)
    pause: float = settings.POLL_INTERVAL
    with SettleWatch(log, status.topic) as watch:
        while True:
            if status.offset is not None:
                watch.ask(status.offset)  # before the read, which shows what was settled until now
            status = read(status)
            if status.finished:
                return status
            left = end - time.monotonic()
            if left <= 0:
                return None
            watch.wait(min(pause, left))
            pause = min(2 * pause, settings.IDLE_POLL_INTERVAL)


def _refuse_transaction(log: Log) -> None:
    connection = log.connection
    if in_test_case(connection):
        raise ConfigurationError("in a TestCase nothing is delivered by itself: call sqlqueue.testing.drain() first")
    if connection.in_atomic_block or not connection.get_autocommit():
        raise ConfigurationError(
            "wait() inside a transaction would wait for ever for what this has published, and hold its locks meanwhile:"
            " call it after the commit (and outside of ATOMIC_REQUESTS)"
        )
