"""PgQueuer: asyncpg in its worker, as its quick start has it; producers send on Django's connection.

Run as a module it is the worker, which `pgq run` would start (that of 1.6 fails with the newest typer).
"""

import asyncio
import functools
import json
import os
from collections.abc import Sequence
from datetime import timedelta

import asyncpg
import django
import uvloop
from django.db import connection
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, SyncPsycopgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries, SyncQueries

from tests.benchmarks.peers.adapter import CONCURRENCY, Adapter, comes_back, python
from tests.benchmarks.peers.handling import handle, message

URL = os.environ["DATABASE_URL"]


class OnPostgreSQL(Adapter):
    distribution = "pgqueuer"
    setup = (
        f"`PgQueuer.run()` with asyncpg on uvloop, as `pgq run`; the coroutine gives each job to a thread,"
        f" {CONCURRENCY} at a time; heartbeat timeout and batch size are the defaults (30 s, 10)"
    )

    def prepare(self) -> None:
        super().prepare()
        asyncio.run(install())
        queries()  # outside of a transaction, as the driver wants it

    def workers(self) -> list[Sequence[str]]:
        return [python(__name__)]

    def enqueue(self, kind: str, number: int) -> None:
        queries().enqueue("work", json.dumps(message(kind, number)).encode())

    def enqueue_many(self, kind: str, numbers: Sequence[int]) -> None:
        payloads = [json.dumps(message(kind, number)).encode() for number in numbers]
        queries().enqueue(["work"] * len(payloads), payloads, [0] * len(payloads))


@functools.cache
def queries() -> SyncQueries:
    """Return what sends on the connection that Django has opened."""
    connection.ensure_connection()
    return SyncQueries(SyncPsycopgDriver(connection.connection))


async def install() -> None:
    opened = await asyncpg.connect(URL)
    await Queries(AsyncpgDriver(opened)).install()
    await opened.close()


async def main() -> PgQueuer:
    """Return the worker."""
    django.setup()
    pgq = PgQueuer(AsyncpgDriver(await asyncpg.connect(URL)))
    slots = asyncio.Semaphore(CONCURRENCY)

    @pgq.entrypoint("work")
    async def work(job: Job) -> None:
        async with slots:
            await asyncio.to_thread(handle, *json.loads(job.payload or b""))

    return pgq


async def run() -> None:
    await (await main()).run(heartbeat_timeout=timedelta(seconds=comes_back(30)))


if __name__ == "__main__":
    uvloop.run(run())
