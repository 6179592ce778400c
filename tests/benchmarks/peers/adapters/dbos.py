"""DBOS: a workflow of one function, on a queue. Run as a module it is the worker."""

import functools
import os
import threading
from collections.abc import Sequence

import django
from dbos import DBOS, DBOSClient
from sqlalchemy import Engine, create_engine, text

from tests.benchmarks.peers.adapter import CONCURRENCY, Adapter, python
from tests.benchmarks.peers.handling import handle, message

URL = os.environ["DATABASE_URL"]
OPTIONS = {"queue_name": "peers", "workflow_name": "work", "app_version": "1"}


class OnPostgreSQL(Adapter):
    distribution = "dbos"
    setup = (
        f"one process with `max_executor_threads` {CONCURRENCY}, a queue without limits (with `worker_concurrency` it"
        " takes that many at each poll, once a second); the system database is the application's"
    )
    has_bulk = False

    def prepare(self) -> None:
        super().prepare()
        launch()
        DBOS.destroy()

    def workers(self) -> list[Sequence[str]]:
        return [python(__name__)]

    def enqueue(self, kind: str, number: int) -> None:
        client().enqueue(OPTIONS, *message(kind, number))

    def enqueue_in_transaction(self, kind: str, number: int) -> None:
        """Write the row on SQLAlchemy's connection, for DBOS takes no other."""
        insert = "INSERT INTO peers_written (number, text, created) VALUES (:number, 'ordered', now())"
        with engine().begin() as connection:
            connection.execute(text(insert), {"number": number})
            client().enqueue_in_transaction(connection, OPTIONS, *message(kind, number))


@functools.cache
def client() -> DBOSClient:
    return DBOSClient(system_database_url=URL)


@functools.cache
def engine() -> Engine:
    return create_engine(URL.replace("postgresql://", "postgresql+psycopg://"))


@DBOS.workflow(name="work")
def work(kind: str, number: int, sent: int, filler: str) -> None:
    handle(kind, number, sent, filler)


def launch() -> None:
    config = {"name": "peers", "system_database_url": URL, "application_version": "1", "log_level": "WARNING"}
    DBOS(config={**config, "run_admin_server": False, "max_executor_threads": CONCURRENCY})
    DBOS.launch()


if __name__ == "__main__":
    django.setup()
    launch()
    DBOS.register_queue("peers")
    threading.Event().wait()
