"""dramatiq on Redis."""

import os
from collections.abc import Sequence

import django
import dramatiq
from dramatiq.brokers.redis import RedisBroker

from tests.benchmarks.peers.adapter import CONCURRENCY, Adapter, comes_back, python
from tests.benchmarks.peers.handling import handle, message

django.setup()
dramatiq.set_broker(RedisBroker(url=os.environ["REDIS_URL"], heartbeat_timeout=1000 * comes_back(60)))


class Dramatiq(Adapter):
    distribution = "dramatiq"
    server = "redis"
    setup = f"`dramatiq --processes 1 --threads {CONCURRENCY}`"
    transactional = False
    has_bulk = False

    def workers(self) -> list[Sequence[str]]:
        return [python("dramatiq", __name__, "--processes=1", f"--threads={CONCURRENCY}")]

    def enqueue(self, kind: str, number: int) -> None:
        work.send(*message(kind, number))


@dramatiq.actor
def work(kind: str, number: int, sent: int, filler: str) -> None:
    handle(kind, number, sent, filler)
