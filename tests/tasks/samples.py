"""Tasks that the tests enqueue."""

import asyncio
import os
import threading
from typing import Any

from django.db import connection, transaction

from sqlqueue import HandOver, Postpone, Reject
from sqlqueue.tasks import task_options
from sqlqueue.tasks.interface import TaskContext
from tests.tasks.declaring import task

RAN: list[Any] = []  # what tasks have noted, in the order of their runs
GATE = threading.Event()


@task
def note(what: Any = None, **more: Any) -> Any:
    """Note an argument, and return what was given."""
    RAN.append(what)
    return {"what": what, **more}


@task(queue_name="special", priority=7)
def special() -> str:
    return "special"


@task
async def later(what: str) -> str:
    await asyncio.sleep(0)
    RAN.append(what)
    return what.upper()


@task
def fail(text: str) -> None:
    RAN.append(text)
    raise ValueError(text)


@task
async def fail_later(text: str) -> None:
    raise ValueError(text)


@task(backend="retrying")
def fail_until(attempt: int) -> int:
    RAN.append(attempt)
    if len(RAN) < attempt:
        raise OSError(f"not yet, {len(RAN)}")
    return len(RAN)


@task
@task_options(max_attempts=2, backoff=0, jitter=0, retry_for=(OSError,))
def own_options(kind: str) -> None:
    RAN.append(kind)
    raise OSError("again") if kind == "os" else ValueError("never again")


@task(takes_context=True)
def in_context(context: TaskContext, more: int) -> dict[str, Any]:
    result = context.task_result
    return {"attempt": context.attempt, "status": result.status, "id": result.id, "args": result.args, "more": more}


@task(takes_context=True, backend="retrying")
async def in_context_later(context: TaskContext) -> int:
    if context.attempt < 2:
        raise OSError("not the first time")
    return context.attempt


@task
def unserialisable() -> Any:
    return object()


@task
def not_a_number() -> float:
    return float("nan")


@task(backend="retrying")
def return_it(what: str) -> Any:
    RAN.append(what)
    return {"object": object(), "nan": float("nan"), "large": "x" * 2_000}[what]


@task
def interrupt() -> None:
    raise KeyboardInterrupt("from the task")


@task
def null_character() -> str:
    return "a\0b\ud800"


@task
def enormous() -> str:
    return "x" * 2_000


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


@task
def unprintable() -> None:
    raise Unprintable


@task
def interrupted() -> None:
    raise SystemExit("out")


@task
def not_now() -> str:
    RAN.append("not now")
    if len(RAN) < 3:
        raise Postpone("busy", delay=0)
    return "now"


@task(backend="retrying")
def rejected() -> None:
    raise Reject("no such order")


@task
def leaves_a_transaction_open() -> None:
    transaction.set_autocommit(False)
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


@task
def breaks_its_transaction() -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT nothing FROM nowhere")


@task
def wait_at_the_gate() -> str:
    RAN.append("at the gate")
    GATE.wait(60)
    return "through"


@task
def end_the_process() -> None:
    os.kill(os.getpid(), 9)


@task
def quotes(count: int) -> str:
    return '"' * count


@task
def long_text(text: str) -> int:
    return len(text)


@task
def fail_at_length(text: str) -> None:
    raise ValueError("x" * 9_000)


@task
def loses_its_connection(size: int) -> str:
    end_connection()
    return "x" * size


def end_connection() -> None:
    """Let the server end this thread's connection, as it does with one that has been idle for too long."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()" if connection.vendor == "postgresql" else "SELECT CONNECTION_ID()")
        (id,) = cursor.fetchone()
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            cursor.execute(f"SELECT pg_terminate_backend({id})" if connection.vendor == "postgresql" else f"KILL {id}")
    finally:
        other.close()


@task
def hand_over() -> None:
    raise HandOver("amount over 500")


@task(backend="retrying")
@transaction.atomic
async def hidden() -> None:
    RAN.append("hidden")


@task(backend="retrying")
def returns_steps() -> Any:
    RAN.append("called")
    return (RAN.append(step) for step in range(3))
