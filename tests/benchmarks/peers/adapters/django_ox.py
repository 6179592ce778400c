"""django-ox, with the Tasks of Django itself."""

from collections.abc import Sequence

from django_ox.bulk import enqueue_many

from tests.benchmarks.peers.adapter import CONCURRENCY, Adapter, python
from tests.benchmarks.peers.handling import handle, message

try:
    from django.tasks import task
except ImportError:  # Django 5.2
    from django_tasks import task


class DjangoOx(Adapter):
    distribution = "django-ox"
    setup = f"`ox_worker --concurrency {CONCURRENCY}` (threads); all settings are the defaults"

    def workers(self) -> list[Sequence[str]]:
        return [python("django", "ox_worker", f"--concurrency={CONCURRENCY}")]

    def enqueue(self, kind: str, number: int) -> None:
        work.enqueue(*message(kind, number))

    def enqueue_many(self, kind: str, numbers: Sequence[int]) -> None:
        enqueue_many(work, [(message(kind, number), {}) for number in numbers])


@task
def work(kind: str, number: int, sent: int, filler: str) -> None:
    handle(kind, number, sent, filler)
