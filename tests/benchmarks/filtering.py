"""What a filter that leaves out everything takes, beside the fetch of the same messages: medians of interleaved rounds.

The fetch is the library's, as a consumer of all partitions without a filter reads whole messages, and nothing around
it; the bare fetch is its statement alone. A filter's rate is that of a consumer process from when it holds its leases
until everything is settled: reads, filter, settles, counts. The ratios are those of each round, whose parts follow one
another at once; so what else the machine does concerns both. The CPU is that of this process, without the server's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple

from tests.logs import LOG

AT_ONCE = 200  # messages of a partition, as a consumer with a batch_size of 100 reads them
ROUNDS = 7
FETCH = "fetch"
BARE = "bare fetch"
# What a consumer reads, and nothing around it.
ROWS = "SELECT {columns} FROM sqlqueue_message{by_stream} WHERE {beyond} ORDER BY {ascending} LIMIT %s"
KINDS: dict[str, dict[str, Any]] = {
    "a header": {"headers.country": ["DE", "AT"]},
    "a number of the payload": {"payload.total__gte": 100},
    "the key": {"key": "another"},
}


class Cost(NamedTuple):
    """seconds: of the wall clock; cpu: of the process; statements: how many."""

    seconds: float
    cpu: float
    statements: int


class Figure(NamedTuple):
    """rate: messages a second; ratio: to the fetch; cpu: microseconds for a message; statements: of a round."""

    what: str
    rate: float
    ratio: float
    cpu: float
    statements: float


def filtering(count: int, partitions: int, payload: dict[str, Any]) -> Iterator[Figure]:
    """Yield what the fetches and each filter take. No message matches."""
    from sqlqueue import NewMessage, publish_many
    from sqlqueue.log.topics import insert

    insert(LOG, "filtered", partitions)
    for first in range(0, count, 1000):
        numbers = range(first, min(first + 1000, count))
        publish_many(
            "filtered",
            [NewMessage({"total": n % 100, **payload}, key=f"k{n % 997}", headers={"country": "FR"}) for n in numbers],
        )
    costs: dict[str, list[Cost]] = {}
    for number in range(ROUNDS):
        costs.setdefault(FETCH, []).append(_cost(lambda: _fetch(partitions)))
        costs.setdefault(BARE, []).append(_cost(lambda: _fetch_bare(partitions)))
        for kind, where in KINDS.items():
            cost = _leave_out(f"{kind.replace(' ', '-')}-{number}", where)
            costs.setdefault(f"a filter of {kind}", []).append(cost)
    for what, some in costs.items():
        ratio = median(fetched.seconds / cost.seconds for fetched, cost in zip(costs[FETCH], some))
        seconds, cpu, statements = map(median, zip(*some))
        yield Figure(what, count / seconds, ratio, cpu / count * 1e6, statements)


def _cost(work: Callable[[], object]) -> Cost:
    from django.db import connection

    statements = 0

    def note(execute: Any, *arguments: Any) -> Any:
        nonlocal statements
        statements += 1
        return execute(*arguments)

    with connection.execute_wrapper(note):
        began, cpu = time.perf_counter(), time.process_time()
        work()
        return Cost(time.perf_counter() - began, time.process_time() - cpu, statements)


def _fetch(partitions: int) -> None:
    from sqlqueue.core.partition.ref import PartitionRef
    from sqlqueue.core.partition.window import Read
    from sqlqueue.log.fetch import fetch

    cursors = dict.fromkeys(range(partitions), 0)
    while cursors:
        reads = [(PartitionRef("g", "filtered", number), Read(last, AT_ONCE)) for number, last in cursors.items()]
        found = fetch(LOG, reads)
        cursors = {
            number: one.messages[-1].offset for number, one in zip(cursors, found) if len(one.messages) == AT_ONCE
        }


def _fetch_bare(partitions: int) -> None:
    from sqlqueue.log.messages import whole

    syntax = LOG.dialect
    text = ROWS.replace("{columns}", whole(syntax))
    for partition in range(partitions):
        last, more = 0, True
        while more:
            place = syntax.range_values("filtered", partition, 0, last)
            rows = LOG.execute(text, (*place, AT_ONCE)).fetchall()
            more = len(rows) == AT_ONCE
            last = rows[-1][0] if rows else last


def _leave_out(group: str, where: dict[str, Any]) -> Cost:
    from sqlqueue.consumers.declare.registry import build
    from sqlqueue.consumers.engine.subscriber import Subscriber

    def consume() -> None:
        while not subscriber.idle or subscriber.anything_due():
            time.sleep(subscriber.run_once() and 0.001)

    made = build("filtered", {"group": group, "where": where})
    subscriber = Subscriber([replace(made, handler=print)])
    subscriber.start()
    try:
        subscriber.balance()
        return _cost(consume)
    finally:
        subscriber.close()
