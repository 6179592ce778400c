"""Tasks of Django's interface: what each returns or raises is known from its arguments.

add      returns the sum
fail     raises, and is not run again
flaky    raises at its first attempt, and returns at the second
deadly   kills its process at the first attempt, and returns at the next
"""

import os
import signal

from sqlqueue.tasks import task, task_options
from tests.soak.workload import QUEUE, TASKS


class Wanted(Exception):
    """What a task raises that is to fail."""


@task(queue_name=QUEUE)
def add(one: int, other: int) -> dict[str, int]:
    return {"sum": one + other}


@task(queue_name=QUEUE)
def fail(one: int, other: int) -> None:
    raise Wanted(one + other)


@task(queue_name=QUEUE, takes_context=True)
@task_options(max_attempts=3, backoff=0.1)
def flaky(context, one: int, other: int) -> dict[str, int]:
    if not context.task_result.errors:
        raise Wanted(one + other)
    return {"sum": one + other}


@task(queue_name=QUEUE, takes_context=True)
def deadly(context, one: int, other: int) -> dict[str, int]:
    if context.attempt == 1:
        from tests.soak.handlers import journal  # which only consumers may import

        journal.note("died", TASKS.topic, TASKS.group, 0)
        os.kill(os.getpid(), signal.SIGKILL)
    return {"sum": one + other}


KINDS = {"add": add, "fail": fail, "flaky": flaky, "deadly": deadly}
