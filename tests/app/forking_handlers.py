"""Handlers that fork: the payload names what the child does. The parent notes how the child has ended."""

import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

from django.db import connections, transaction

from sqlqueue import Delivery, consumer
from sqlqueue.signals import delivery_settled
from tests.app.models import Effect

FORK = multiprocessing.get_context("fork")
ONCE: dict[str, Any] = {"max_attempts": 1, "ordering": "none"}


def write(value: str) -> None:
    Effect.objects.create(name="child", value=value)


def fail() -> None:
    raise ValueError("in the child")


def write_and_close() -> None:
    write("by fork")
    connections.close_all()
    sys.exit(3)


def close_what_it_has() -> None:
    """As the guides of libraries advise before and after a fork."""
    for one in connections.all(initialized_only=True):
        one.close()
    os._exit(4)


CHILDREN: dict[str, Callable[[], Any]] = {
    "exit": partial(sys.exit, 7),
    "return": lambda: None,
    "raise": fail,
    "leave": partial(os._exit, 5),
    "write": write_and_close,
    "close": close_what_it_has,
}


def ended(process: Any) -> int | None:
    """Return how a process of the library has ended. Where another thread starts one at that moment, it may be that
    thread that waits for it: the library knows its end an instant later."""
    process.join(30)
    for _ in range(1000):
        if process.exitcode is not None:
            break
        time.sleep(0.01)
    return process.exitcode


def fork(how: str) -> Any:
    """Fork; return how the child has ended, and in the child do what the name says."""
    if how == "multiprocessing":
        process = FORK.Process(target=write, args=("by multiprocessing",))
        process.start()
        return ended(process)
    if how == "pool":
        with ProcessPoolExecutor(2, mp_context=FORK) as pool:
            return sum(pool.map(abs, [-1, -2, -3]))
    if how == "terminated":
        process = FORK.Process(target=time.sleep, args=(60,))
        process.start()
        process.terminate()
        return ended(process)
    pid = os.fork()
    if pid == 0:
        return CHILDREN[how]()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def note(delivery: Delivery) -> None:
    Effect.objects.create(name="before", value=delivery.payload)
    parent = os.getpid()
    status = fork(delivery.payload)
    if os.getpid() == parent:
        Effect.objects.create(name="after", value=f"{delivery.payload} {status}")


@consumer("forks.each", **ONCE)
@consumer("forks.atomic", atomic=True, **ONCE)
@consumer("forks.grouped", atomic=True, commit_every=5, **ONCE)
def handle(delivery: Delivery) -> None:
    note(delivery)


@consumer("forks.inside", **ONCE)
def handle_in_a_block(delivery: Delivery) -> None:
    with transaction.atomic():
        note(delivery)


@consumer("forks.batch", batch=True, **ONCE)
def handle_all(deliveries: list[Delivery]) -> None:
    parent = os.getpid()
    for delivery in deliveries:
        note(delivery)
        if os.getpid() != parent:
            return


@consumer("forks.async", **ONCE)
async def handle_async(delivery: Delivery) -> None:
    parent = os.getpid()
    status = fork(delivery.payload)
    assert os.getpid() == parent or status is None
    if os.getpid() == parent:
        await Effect.objects.acreate(name="before", value=delivery.payload)
        await Effect.objects.acreate(name="after", value=f"{delivery.payload} {status}")


@consumer("forks.hook", atomic=True, **ONCE)
def handle_by_hook(delivery: Delivery) -> None:
    Effect.objects.create(name="before", value=delivery.payload)
    transaction.on_commit(lambda: note_hook(delivery.payload))


def note_hook(how: str) -> None:
    parent = os.getpid()
    status = fork(how)
    if os.getpid() == parent:
        Effect.objects.create(name="after", value=f"{how} {status}")


@consumer("received.exit", **ONCE)
@consumer("received.return", **ONCE)
@consumer("received.raise", **ONCE)
def do_nothing(delivery: Delivery) -> None:
    pass


def fork_in_the_control_thread(*, topic: str, **_: Any) -> None:
    if topic.startswith("received."):
        note_hook(topic.rpartition(".")[2])


delivery_settled.connect(fork_in_the_control_thread)
