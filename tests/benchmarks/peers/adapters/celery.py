"""Celery on Redis."""

import os
from collections.abc import Sequence

import django
from celery import Celery

from tests.benchmarks.peers.adapter import CONCURRENCY, Adapter, comes_back, python
from tests.benchmarks.peers.handling import handle, message

django.setup()
app = Celery("peers", broker=os.environ["REDIS_URL"])
app.conf.broker_transport_options = {"visibility_timeout": comes_back(3600)}


class OnRedis(Adapter):
    distribution = "celery"
    server = "redis"
    setup = (
        f"`celery worker --concurrency {CONCURRENCY}` (processes), no result backend; by default a task is acknowledged"
        " before it runs, and the worker closes Django's connections around each"
    )
    transactional = False
    has_bulk = False

    def workers(self) -> list[Sequence[str]]:
        return [python("celery", "-A", __name__, "worker", f"--concurrency={CONCURRENCY}", "--loglevel=WARNING")]

    def enqueue(self, kind: str, number: int) -> None:
        work.delay(*message(kind, number))


@app.task(name="work")
def work(kind: str, number: int, sent: int, filler: str) -> None:
    handle(kind, number, sent, filler)
