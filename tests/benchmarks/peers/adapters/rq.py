"""RQ on Redis. Run as a module it is the worker script that RQ's documentation advises: it imports, then forks."""

import os
from collections.abc import Sequence

import django
from redis import Redis
from rq import Queue
from rq.worker_pool import WorkerPool

from tests.benchmarks.peers.adapter import CONCURRENCY, Adapter, python
from tests.benchmarks.peers.handling import handle, message

django.setup()
redis = Redis.from_url(os.environ["REDIS_URL"])
queue = Queue("peers", connection=redis)


class RQ(Adapter):
    distribution = "rq"
    server = "redis"
    setup = f"`WorkerPool` with {CONCURRENCY} workers, from a script that has imported the tasks; no `Retry`"
    transactional = False

    def workers(self) -> list[Sequence[str]]:
        return [python(__name__)]

    def enqueue(self, kind: str, number: int) -> None:
        queue.enqueue(handle, *message(kind, number), result_ttl=0)

    def enqueue_many(self, kind: str, numbers: Sequence[int]) -> None:
        queue.enqueue_many(Queue.prepare_data(handle, message(kind, number), result_ttl=0) for number in numbers)


if __name__ == "__main__":
    WorkerPool([queue], connection=redis, num_workers=CONCURRENCY).start(logging_level="WARNING")
