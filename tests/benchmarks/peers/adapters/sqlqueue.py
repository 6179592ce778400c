"""sqlqueue itself, on PostgreSQL, MariaDB or (for the harness's test) SQLite."""

from collections.abc import Sequence

from sqlqueue import NewMessage, consumer, publish, publish_many
from tests.benchmarks.peers.adapter import CONCURRENCY, KINDS, Adapter, python
from tests.benchmarks.peers.handling import handle, message, note

OPTIONS = {
    "noop": {},
    "sleep": {},
    "write": {},
    "write-atomic": {"atomic": True},
    "write-grouped": {"atomic": True, "commit_every": 100},
}


class SQLQueue(Adapter):
    distribution = "sqlqueue"
    setup = f"`runconsumers --threads {CONCURRENCY}`, one process; all settings are the defaults; 997 keys"
    kinds = (*KINDS, "write-atomic", "write-grouped", "noop-batch")

    def workers(self) -> list[Sequence[str]]:
        return [python("django", "runconsumers", "--noreload", f"--threads={CONCURRENCY}")]

    def enqueue(self, kind: str, number: int) -> None:
        publish(kind, message(kind, number), key=f"k{number % 997}")

    def enqueue_many(self, kind: str, numbers: Sequence[int]) -> None:
        publish_many(kind, [NewMessage(message(kind, number), key=f"k{number % 997}") for number in numbers])


class OnMariaDB(SQLQueue):
    server = "mariadb"


class OnSQLite(SQLQueue):
    server = "sqlite"


def one(delivery) -> None:
    handle(*delivery.payload)


for topic, options in OPTIONS.items():
    consumer(topic, **options)(one)


@consumer("noop-batch", batch=True, batch_size=500)
def many(deliveries) -> None:
    note((number, sent) for _, number, sent, _ in (delivery.payload for delivery in deliveries))
