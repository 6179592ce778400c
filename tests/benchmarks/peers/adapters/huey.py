"""huey with its SQL storage."""

import os
from collections.abc import Sequence

import django
from huey.contrib.sql_huey import SqlHuey

from tests.benchmarks.peers.adapter import CONCURRENCY, Adapter, python
from tests.benchmarks.peers.handling import handle, message

django.setup()
huey = SqlHuey("peers", database=os.environ["DATABASE_URL"], results=False)


class Huey(Adapter):
    distribution = "huey"
    setup = f"`huey_consumer --workers {CONCURRENCY}` (threads) with `SqlHuey`, whose connections are peewee's"
    transactional = False
    has_bulk = False

    def workers(self) -> list[Sequence[str]]:
        return [python("huey.bin.huey_consumer", f"{__name__}.huey", f"--workers={CONCURRENCY}")]

    def enqueue(self, kind: str, number: int) -> None:
        work(*message(kind, number))


@huey.task()
def work(kind: str, number: int, sent: int, filler: str) -> None:
    handle(kind, number, sent, filler)
