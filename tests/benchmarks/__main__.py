"""Measure publishing, consuming, filters, waiting, calls, schedules, batches and delays, on a private server: `make
benchmark`.

It is MariaDB, unless `--database` names another one; `--only delay` (repeatable) leaves out the rest.

Every figure is messages a second of this run on this machine; what can be compared with other runs are the ratios to
the bare statements beside them. 300-byte payloads, 16 partitions, 997 keys, one consumer process, handlers that do
nothing.
"""

import argparse
import functools
import logging
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.benchmarks.batches import settling
from tests.benchmarks.calls import answers
from tests.benchmarks.databases import NAMES, migrated
from tests.benchmarks.filtering import Figure, filtering
from tests.benchmarks.lateness import lateness
from tests.benchmarks.scheduling import falling_due, waiting_for_their_time
from tests.logs import LOG
from tests.transactions import OpenTransaction

PARTITIONS = 16
BATCH = 500
PAYLOAD = {"filler": "x" * 285}
WATCHED = 10.0  # seconds
DELAYED = 100  # messages
CALLED = 200  # calls of each kind
PARTS = ("publish", "consume", "filter", "wait", "call", "delay", "schedule", "batch")
# In the words of sqlqueue.database.dialects.
BARE_FETCH = (
    'SELECT "offset", partition_key, message_id, payload, headers, created_at FROM sqlqueue_message{by_stream}'
    " WHERE {beyond} ORDER BY {ascending} LIMIT %s"
)
BARE_INSERT = 'INSERT INTO sqlqueue_message (topic, "partition", message_id, partition_key, payload) VALUES '


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--scheduled", type=int, default=1_000_000, help="messages that wait for their time")
    parser.add_argument("--processes", type=int, default=4, help="consumer processes of the batches")
    parser.add_argument("--database", choices=NAMES, default="mariadb")
    parser.add_argument("--only", choices=PARTS, action="append", help="repeatable (default: all)")
    arguments = parser.parse_args()
    count, parts = arguments.messages, arguments.only or PARTS
    logging.basicConfig(filename=os.devnull)  # failures are logged, as everywhere; the terminal is not measured
    with migrated(arguments.database):
        if "publish" in parts:
            show("Publish", publishing(count))
        if "consume" in parts:
            show("Consume", consuming(count))
        if "filter" in parts:
            show_filters(filtering(count, PARTITIONS, PAYLOAD))
        if "wait" in parts:
            show_waiting(waiting(count))
        if "call" in parts:
            show_times(f"Calls of an idle system, {arguments.database}: until the reply, in ms", answers(CALLED))
        if "delay" in parts:
            late = f"Delayed messages of an idle system, {arguments.database}: how late they come, in ms"
            show_times(late, lateness(DELAYED))
        if "batch" in parts:
            figures = settling(count, arguments.processes, PARTITIONS, PAYLOAD)
            show(f"Batches, {arguments.processes} consumer processes", figures, "the same without a batch")
        if "schedule" in parts:
            show_looks(waiting_for_their_time(arguments.scheduled))
            show("Schedule", falling_due(), "publish_many")


def show(title: str, figures: Iterator[tuple[str, float, float]], other: str = "the bare statement") -> None:
    table = Table(title=title)
    for name in ("what", "messages/s", f"ratio to {other}"):
        table.add_column(name, justify="left" if name == "what" else "right")
    for what, rate, bare in figures:
        table.add_row(what, f"{rate:,.0f}", f"{rate / bare:.2f}")
    Console().print(table)


def show_waiting(figures: Iterator[tuple[str, float, float]]) -> None:
    columns = ("what", "statements/s", "CPU of the loop's thread, ms/s")
    show_costs("Wait, with nothing to do", columns, ((what, f"{a:,.1f}", f"{b:,.1f}") for what, a, b in figures))


def show_looks(figures: Iterator[tuple[str, float, float]]) -> None:
    title = "One look for what is due, of an idle consumer and the scheduler"
    show_costs(title, ("what", "statements", "ms"), ((what, f"{a:,.0f}", f"{b:,.2f}") for what, a, b in figures))


def show_filters(figures: Iterator[Figure]) -> None:
    columns = ("what", "messages/s", "ratio to the fetch", "CPU of the process, µs a message", "statements")
    rows = (
        (one.what, f"{one.rate:,.0f}", f"{one.ratio:.2f}", f"{one.cpu:.2f}", f"{one.statements:,.0f}")
        for one in figures
    )
    show_costs("Leave out by a filter, medians of interleaved rounds", columns, rows)


def show_costs(title: str, columns: tuple[str, ...], rows: Iterator[tuple[str, str, str]]) -> None:
    table = Table(title=title)
    for name in columns:
        table.add_column(name, justify="left" if name == "what" else "right")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def show_times(title: str, figures: Iterator[tuple[str, list[float]]]) -> None:
    table = Table(title=title)
    for name in ("what", "messages", "p50", "p99", "max"):
        table.add_column(name, justify="left" if name == "what" else "right")
    for what, times in figures:
        *_, p99 = statistics.quantiles(times, n=100, method="inclusive")
        milliseconds = (f"{1000 * seconds:,.1f}" for seconds in (statistics.median(times), p99, times[-1]))
        table.add_row(what, str(len(times)), *milliseconds)
    Console().print(table)
    Console().print(f"Load of the machine in the last minute: {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs.")


def rate(count: int, work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return count / (time.perf_counter() - began)


def publishing(count: int) -> Iterator[tuple[str, float, float]]:
    from sqlqueue import NewMessage, publish, publish_many
    from sqlqueue.core.codec import encode
    from sqlqueue.core.keys import new_id

    singles = max(1, count // 20)
    text = encode(PAYLOAD)
    publish("bare", PAYLOAD)

    def row(number: int) -> tuple[str, int, str, str, str]:
        return "bare", number % PARTITIONS, new_id(), f"k{number % 997}", text

    def bare_singles() -> None:
        for number in range(singles):
            LOG.execute(BARE_INSERT + "(%s, %s, %s, %s, %s)", row(number))

    def bare_bulk() -> None:
        for first in range(0, count, 1000):
            rows = [row(number) for number in range(first, first + 1000)]
            marks = ", ".join(["(%s, %s, %s, %s, %s)"] * len(rows))
            LOG.execute(BARE_INSERT + marks, [value for values in rows for value in values])

    def bulk() -> None:
        for first in range(0, count, 1000):
            publish_many("bulk", [NewMessage(PAYLOAD, key=f"k{n % 997}") for n in range(first, first + 1000)])

    bare = rate(singles, bare_singles)
    yield "bare autocommit INSERT", bare, bare
    yield (
        "publish",
        rate(singles, lambda: [publish("single", PAYLOAD, key=f"k{n % 997}") for n in range(singles)]),
        bare,
    )
    bare = rate(count, bare_bulk)
    yield "bare INSERT of 1,000 rows", bare, bare
    yield "publish_many", rate(count, bulk), bare


def consuming(count: int) -> Iterator[tuple[str, float, float]]:
    from sqlqueue import Retry
    from sqlqueue.consumers.declare.registry import build
    from sqlqueue.consumers.engine.subscriber import Subscriber
    from sqlqueue.consumers.process.worker import look_less_often
    from sqlqueue.log.topics import insert

    look_less_often()  # as a consumer process does
    insert(LOG, "bench", PARTITIONS)
    publish_some(count)

    def bare_fetch() -> None:
        for partition in range(PARTITIONS):
            last, rows = 0, [()] * BATCH
            while len(rows) == BATCH:
                place = LOG.dialect.range_values("bench", partition, 0, last)
                rows = LOG.execute(BARE_FETCH, (*place, BATCH)).fetchall()
                last = rows[-1][0] if rows else last

    def failing(one_in: int) -> Callable[[object], None]:
        def handle(delivery: object) -> None:
            if delivery.attempt == 1 and delivery.offset % one_in == 0:
                raise Retry(delay=0)

        return handle

    bare = rate(count, bare_fetch)
    yield "bare fetch", bare, bare
    kinds: list[tuple[str, Callable[[Any], object], dict[str, Any]]] = [
        ("batch handler (500)", lambda deliveries: None, {"batch": True, "batch_size": BATCH}),
        ("atomic batch handler (500)", lambda deliveries: None, {"batch": True, "batch_size": BATCH, "atomic": True}),
        ("handler", lambda delivery: None, {}),
        ("handler, 1 % fail once", failing(100), {"backoff": 0}),
        ("handler, 10 % fail once", failing(10), {"backoff": 0}),
    ]
    for name, handler, options in kinds:
        made = build("bench", {"group": name.replace(" ", "-").translate({ord(c): None for c in "(),%"}), **options})
        subscriber = Subscriber([replace(made, handler=handler)])
        yield name, rate(count, lambda: subscriber.run(drain=True)), bare  # noqa: B023  run in this iteration
    with held_back():
        for name, handler, options in (kinds[0], kinds[2]):
            made = build("bench", {"group": f"held-{len(options)}", **options})
            subscriber = Subscriber([replace(made, handler=handler)])
            consume = functools.partial(subscriber.run, drain=True)
            yield f"{name}, beside an open publishing transaction", rate(count, consume), bare
    with without_metrics():
        for name, handler, options in (kinds[0], kinds[2]):
            subscriber = Subscriber(
                [replace(build("bench", {"group": f"no-{len(options)}", **options}), handler=handler)]
            )
            yield f"{name}, no metrics", rate(count, lambda: subscriber.run(drain=True)), bare  # noqa: B023


def waiting(count: int) -> Iterator[tuple[str, float, float]]:
    """What a consumer of all of it costs that has nothing left to do, in the loop's thread: 16 streams."""
    yield "the horizon is at the log's end", *idling("held-0")
    with held_back():
        publish_some(count)
        yield f"the horizon is held back, {count:,} messages were delivered beyond it", *idling("held-0")


def idling(group: str) -> tuple[float, float]:
    """Let a consumer work until it has nothing to do, and then turn for a while; return (statements a second, ms of CPU
    time a second)."""
    from django.db import connection

    from sqlqueue.consumers.declare.registry import build
    from sqlqueue.consumers.engine.subscriber import Subscriber

    made = build("bench", {"group": group})
    subscriber = Subscriber([replace(made, handler=lambda delivery: None)], background_tasks=False)
    statements = 0

    def counted(execute: Callable[..., Any], *call: Any) -> Any:
        nonlocal statements
        statements += 1
        return execute(call)

    subscriber.start()
    try:
        while not subscriber.idle or subscriber.anything_due():
            time.sleep(min(0.05, subscriber.run_once()))
        for _ in range(20):  # it polls less and less often
            time.sleep(subscriber.run_once())
        began, busy = time.perf_counter(), time.thread_time()
        with connection.execute_wrapper(counted):
            while time.perf_counter() < began + WATCHED:
                time.sleep(subscriber.run_once())
        seconds = time.perf_counter() - began
        return statements / seconds, 1000 * (time.thread_time() - busy) / seconds
    finally:
        subscriber.close()


def publish_some(count: int) -> None:
    from sqlqueue import NewMessage, publish_many

    for first in range(0, count, 1000):
        publish_many("bench", [NewMessage(PAYLOAD, key=f"k{n % 997}") for n in range(first, first + 1000)])


@contextmanager
def held_back() -> Iterator[None]:
    """Keep a transaction open that has published to another topic."""
    from sqlqueue import publish

    with OpenTransaction() as slow:
        slow.do(lambda: publish("other", PAYLOAD))
        yield


@contextmanager
def without_metrics() -> Iterator[None]:
    """Count nothing, as where prometheus_client is not installed."""
    from sqlqueue.monitoring import metrics

    for signal, _receiver in metrics.RECEIVERS:
        signal.disconnect(dispatch_uid=metrics.UID)
    try:
        yield
    finally:
        metrics.connect_receivers()


if __name__ == "__main__":
    main()
