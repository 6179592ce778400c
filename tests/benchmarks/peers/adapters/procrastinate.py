"""procrastinate with its Django integration."""

from collections.abc import Sequence

from procrastinate.contrib.django import app

from tests.benchmarks.peers.adapter import CONCURRENCY, Adapter, python
from tests.benchmarks.peers.handling import handle, message


class Procrastinate(Adapter):
    distribution = "procrastinate"
    setup = (
        f"`procrastinate worker --concurrency {CONCURRENCY}`, tasks in threads, and the periodic task that retries"
        " stalled jobs as its documentation has it, each 10 s"
    )

    def workers(self) -> list[Sequence[str]]:
        return [python("django", "procrastinate", "worker", f"--concurrency={CONCURRENCY}")]

    def enqueue(self, kind: str, number: int) -> None:
        work.defer(**arguments(kind, number))

    def enqueue_many(self, kind: str, numbers: Sequence[int]) -> None:
        work.batch_defer(*(arguments(kind, number) for number in numbers))


def arguments(kind: str, number: int) -> dict[str, object]:
    return dict(zip(("kind", "number", "sent", "filler"), message(kind, number)))


@app.task
def work(kind: str, number: int, sent: int, filler: str) -> None:
    handle(kind, number, sent, filler)


@app.periodic(cron="* * * * * */10")
@app.task(queueing_lock="retry_stalled_jobs", pass_context=True)
async def retry_stalled_jobs(context, timestamp: int) -> None:
    for job in await app.job_manager.get_stalled_jobs():
        await app.job_manager.retry_job(job)
