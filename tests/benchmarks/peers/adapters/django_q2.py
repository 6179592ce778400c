"""django-q2 with its ORM broker."""

from collections.abc import Sequence

from django_q.tasks import async_task

from tests.benchmarks.peers.adapter import CONCURRENCY, Adapter, python
from tests.benchmarks.peers.handling import handle, message

WORK = f"{handle.__module__}.{handle.__qualname__}"


class DjangoQ2(Adapter):
    distribution = "django-q2"
    setup = (
        f"`qcluster` with {CONCURRENCY} workers (processes) and the ORM broker, `bulk` 10 and `queue_limit` 50 as"
        " its page on that broker has them; `timeout` 90 s, `retry` 120 s"
    )
    has_bulk = False

    def workers(self) -> list[Sequence[str]]:
        return [python("django", "qcluster")]

    def enqueue(self, kind: str, number: int) -> None:
        async_task(WORK, *message(kind, number))
