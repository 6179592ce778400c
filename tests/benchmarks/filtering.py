"""How fast a filter leaves out what does not match, beside the reads that it takes: the best of three runs each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

AT_ONCE = 200  # messages of a partition, as a consumer with a batch_size of 100 reads them
RUNS = 3
# What a consumer reads, and nothing around it.
ROWS = "SELECT {columns} FROM sqlqueue_message{by_stream} WHERE {beyond} ORDER BY {ascending} LIMIT %s"
KINDS: dict[str, dict[str, Any]] = {
    "a header": {"headers.country": ["DE", "AT"]},
    "a number of the payload": {"payload.total__gte": 100},
    "the key": {"key": "another"},
}


def filtering(count: int, partitions: int, payload: dict[str, Any]) -> Iterator[tuple[str, float, float]]:
    """Yield (what, messages a second, those of the bare fetch). No message matches."""
    from sqlqueue import NewMessage, publish_many
    from sqlqueue.log.topics import create

    create("default", "filtered", partitions)
    for first in range(0, count, 1000):
        numbers = range(first, min(first + 1000, count))
        publish_many(
            "filtered",
            [NewMessage({"total": n % 100, **payload}, key=f"k{n % 997}", headers={"country": "FR"}) for n in numbers],
        )
    best: dict[str, float] = {}
    for run in range(RUNS):  # one after another, so that a busy minute of the machine concerns all of them
        rates = {
            "bare fetch": _rate(count, lambda: [_fetch_bare(partition) for partition in range(partitions)]),
            "fetch": _rate(count, lambda: _fetch(partitions)),
        }
        for name, where in KINDS.items():
            rates[f"a filter of {name}"] = _leave_out(count, f"{name.replace(' ', '-')}-{run}", where)
        best = {what: max(rate, best.get(what, 0.0)) for what, rate in rates.items()}
    for what, rate in best.items():
        yield what, rate, best["bare fetch"]


def _rate(count: int, work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return count / (time.perf_counter() - began)


def _fetch_bare(partition: int) -> None:
    from sqlqueue.database.statements import dialect, execute
    from sqlqueue.log.fetch import COLUMNS, _with_times

    syntax = dialect("default")
    text = ROWS.replace("{columns}", _with_times(COLUMNS, syntax))
    last, more = 0, True
    while more:
        place = syntax.range_values("filtered", partition, 0, last)
        rows = execute("default", text, (*place, AT_ONCE)).fetchall()
        more = len(rows) == AT_ONCE
        last = rows[-1][0] if rows else last


def _fetch(partitions: int) -> None:
    """As a consumer of all partitions reads them."""
    from sqlqueue.core.partition.ref import PartitionRef
    from sqlqueue.core.partition.window import Read
    from sqlqueue.log.fetch import fetch

    cursors = dict.fromkeys(range(partitions), 0)
    while cursors:
        reads = [(PartitionRef("g", "filtered", number), Read(last, AT_ONCE)) for number, last in cursors.items()]
        found = fetch("default", reads)
        cursors = {
            number: one.messages[-1].offset for number, one in zip(cursors, found) if len(one.messages) == AT_ONCE
        }


def _leave_out(count: int, group: str, where: dict[str, Any]) -> float:
    """Return the rate from when the leases are held until all is settled."""
    from sqlqueue.consumers.registry import Consumer, build
    from sqlqueue.consumers.subscriber import Subscriber

    def consume() -> None:
        while not subscriber.idle or subscriber.anything_due():
            time.sleep(subscriber.run_once() and 0.001)

    made = build("filtered", {"group": group, "where": where})
    subscriber = Subscriber([Consumer(topic="filtered", handler=print, **made)])
    subscriber.start()
    try:
        subscriber.loop.balance()
        return _rate(count, consume)
    finally:
        subscriber.close()
