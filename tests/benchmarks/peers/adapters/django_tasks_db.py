"""django-tasks' database backend, with the Tasks of Django itself."""

from collections.abc import Sequence

from tests.benchmarks.peers.adapter import CONCURRENCY, Adapter, python
from tests.benchmarks.peers.handling import handle, message

try:
    from django.tasks import task
except ImportError:  # Django 5.2
    from django_tasks import task


class DjangoTasksDB(Adapter):
    distribution = "django-tasks-db"
    setup = f"{CONCURRENCY} processes `db_worker`, which handles one task at a time; all settings are the defaults"
    has_bulk = False

    def workers(self) -> list[Sequence[str]]:
        return [python("django", "db_worker", "--no-reload")] * CONCURRENCY

    def enqueue(self, kind: str, number: int) -> None:
        work.enqueue(*message(kind, number))


@task
def work(kind: str, number: int, sent: int, filler: str) -> None:
    handle(kind, number, sent, filler)
