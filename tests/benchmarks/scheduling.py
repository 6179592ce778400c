"""What scheduled messages cost until they are due, and how fast many that are due at one moment enter the log."""

import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

from tests.logs import LOG

DUE = 10_000  # messages that are due at one moment
LOOKS = 200
PAYLOAD = {"filler": "x" * 285}


def waiting_for_their_time(count: int) -> Iterator[tuple[str, float, float]]:
    """Yield how many statements an idle consumer's poll and the scheduler's look take together, and their milliseconds:
    with nothing scheduled, and with so many messages."""
    from sqlqueue import NewMessage, publish_many

    yield "nothing is scheduled", *looking()
    later = timedelta(days=30)
    publish_many("later", (NewMessage(PAYLOAD, key=f"k{n % 997}", id=f"{n}", delay=later) for n in range(count)))
    yield f"{count:,} messages wait for their time", *looking()


def looking() -> tuple[float, float]:
    from django.db import connection

    from sqlqueue.log.fetch import poll_head
    from sqlqueue.log.schedule import move_due

    statements = 0

    def counted(execute: Callable[..., Any], *call: Any) -> Any:
        nonlocal statements
        statements += 1
        return execute(*call)

    began = time.perf_counter()
    with connection.execute_wrapper(counted):
        for _ in range(LOOKS):
            poll_head(LOG)
            move_due(LOG)
    return statements / LOOKS, 1000 * (time.perf_counter() - began) / LOOKS


def falling_due() -> Iterator[tuple[str, float, float]]:
    """Yield the rates at which messages are published in bulk, scheduled, replaced, and enter the log when all are due
    at one moment, beside those that wait."""
    from sqlqueue import NewMessage, publish_many
    from sqlqueue.log.schedule import move_due

    def messages(**options: Any) -> list[NewMessage]:
        return [NewMessage(PAYLOAD, key=f"k{n % 997}", id=f"due-{n}", **options) for n in range(DUE)]

    def rate(work: Callable[[], object]) -> float:
        began = time.perf_counter()
        work()
        return DUE / (time.perf_counter() - began)

    def move_all() -> None:
        while move_due(LOG):
            pass

    now = datetime.now(timezone.utc)
    bulk = rate(lambda: publish_many("bulk-named", messages()))
    yield "publish_many with ids", bulk, bulk
    yield "scheduled by publish_many", rate(lambda: publish_many("due", messages(at=now + timedelta(days=1)))), bulk
    replacing = messages(at=now, on_conflict="replace")
    yield "replaced by publish_many", rate(lambda: publish_many("due", replacing)), bulk
    yield f"{DUE:,} due at one moment enter the log", rate(move_all), bulk
