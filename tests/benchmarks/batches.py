"""How fast members of a batch are settled, compared with messages without one: several consumer processes, handlers
that do nothing."""

import multiprocessing
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.synchronize import Barrier
from typing import Any

from tests.logs import LOG

TIMES = 3  # runs of each, in turns, of which the best counts
HANDLERS: dict[str, dict[str, Any]] = {
    "handler": {},
    "atomic handler": {"atomic": True},
    "batch handler (500)": {"batch": True, "batch_size": 500},
}


def settling(members: int, processes: int, partitions: int, payload: Any) -> Iterator[tuple[str, float, float]]:
    """Yield (what, messages a second, messages a second without a batch)."""
    from sqlqueue.log.groups import register
    from sqlqueue.log.topics import insert

    for number, name in enumerate(HANDLERS):
        best = {False: 0.0, True: 0.0}
        count = members // 5 if "atomic" in name else members
        for turn in range(TIMES):
            for in_batch in (False, True):
                topic = f"batches-{number}-{turn}-{int(in_batch)}"
                insert(LOG, topic, partitions)
                register(LOG, "bench", topic, "earliest")
                _publish(topic, count, in_batch, payload)
                best[in_batch] = max(best[in_batch], count / _drain(topic, name, processes))
        yield f"{name}, without a batch", best[False], best[False]
        yield f"{name}, {count:,} members", best[True], best[False]


def _publish(topic: str, count: int, in_batch: bool, payload: Any) -> None:
    from sqlqueue import Batch, NewMessage, publish_many

    messages = (NewMessage(payload, key=f"k{n % 997}") for n in range(count))
    if not in_batch:
        publish_many(topic, messages)
        return
    with Batch(on_finish=("batches-ended", topic)) as batch:
        batch.publish_many(topic, messages)


def _drain(topic: str, handler: str, processes: int) -> float:
    """Settle everything; return how many seconds that took, until the first process found nothing left."""
    spawn = multiprocessing.get_context("spawn")
    barrier, ended = spawn.Barrier(processes + 1), spawn.Queue()
    children = [
        spawn.Process(target=_consume, args=(topic, handler, barrier, ended, dict(os.environ)))
        for _ in range(processes)
    ]
    for child in children:
        child.start()
    barrier.wait()
    began = time.perf_counter()
    ended.get()
    seconds = time.perf_counter() - began
    for child in children:
        child.join()
        assert child.exitcode == 0
    return seconds


def _consume(topic: str, handler: str, barrier: Barrier, ended: Any, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    import django

    django.setup()
    from sqlqueue.consumers.declare.registry import build
    from sqlqueue.consumers.engine.subscriber import Subscriber

    made = build(topic, {"group": "bench", **HANDLERS[handler]})
    subscriber = Subscriber([replace(made, handler=_nothing)])
    subscriber.run(drain=True, started=barrier.wait)
    ended.put(subscriber.settled)


def _nothing(delivered: Any) -> None:
    pass
