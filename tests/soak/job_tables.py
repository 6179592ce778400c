"""Reads what the final tables say of everyday jobs."""

import time
from collections import Counter
from typing import Any

from sqlqueue.database.log import Log
from tests.soak import workload
from tests.soak.job_records import BatchEnd, Jobs, KeptResult, LogEntry, TaskEnd


def fill_in_jobs(jobs: Jobs) -> None:
    """Read the logs that are kept, the results of handlers and of tasks, and the database's clock."""
    from sqlqueue.conf import settings
    from sqlqueue.database import clock
    from sqlqueue.models import Message, Result

    began = time.monotonic()
    jobs.clock = clock.now(Log.of(settings.DATABASE)).timestamp() - began
    for message in Message.objects.filter(topic__in=workload.JOB_TOPICS).order_by("offset").iterator():
        jobs.log.append(
            LogEntry(
                message.topic,
                message.partition_key,
                message.message_id,
                message.offset,
                message.payload,
                message.target_group,
                message.created_at.timestamp(),
                message.expires_at.timestamp() if message.expires_at else None,
            )
        )
    for row in Result.objects.filter(topic=workload.NAMED):
        jobs.results.append(KeptResult(row.topic, row.consumer_group, row.message_id, row.outcome, row.result))
    for task in jobs.enqueued:
        if (end := end_of(task.kind, task.id)) is not None:
            jobs.ends[task.id] = end
    fill_in_batches(jobs)


def fill_in_batches(jobs: Jobs) -> None:
    """Read the batches, and the states of their members."""
    from sqlqueue.contrib.batches.models import Batch, BatchPart

    added, acked, dead = Counter[str](), Counter[str](), Counter[str]()
    parts = list(BatchPart.objects.all())
    for row in {(row.batch, row.part): row for row in parts}.values():  # groups that get the same members
        added[row.batch] += row.members.bit_count()
    for row in parts:
        acked[row.batch] += (row.members & ~row.outstanding & ~row.dead).bit_count()
        dead[row.batch] += row.dead.bit_count()
    for batch in Batch.objects.exclude(name=""):
        state = "open" if batch.sealed_at is None else "running"
        if batch.cancelled_at is not None:
            state = "cancelled"
        elif batch.finished_at is not None:
            state = "finished"
        jobs.batch_ends[batch.name] = BatchEnd(state, added[batch.id], acked[batch.id], dead[batch.id])


def end_of(kind: str, id: str) -> TaskEnd | None:
    """Return how a task has ended, by the interface; None if there is no such task."""
    from sqlqueue.tasks.interface import TaskResultDoesNotExist
    from tests.soak.tasks import KINDS

    try:
        result: Any = KINDS[kind].get_result(id)
    except TaskResultDoesNotExist:
        return None
    status = str(result.status.value)
    errors = [error.exception_class_path for error in result.errors]
    return TaskEnd(status, result.return_value if status == "SUCCESSFUL" else None, errors)
