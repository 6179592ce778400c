"""What the processes of these tests run: handlers that leave an Effect behind."""

import ctypes
import gc
import os
import time

from sqlqueue import consumer
from sqlqueue.signals import delivery_settled
from sqlqueue.tasks import task_options
from tests.app.models import Effect


@consumer("flights", group="aircraft")
def move(delivery) -> None:
    Effect.objects.create(name="aircraft", value=f"{delivery.payload}@{os.getpid()}")


@consumer("flights", group="delays", batch=True, atomic=True, batch_size=10)
def add(deliveries) -> None:
    Effect.objects.bulk_create(Effect(name="delays", value=str(delivery.payload)) for delivery in deliveries)


@consumer("slow", group="aircraft", visibility_timeout=float(os.environ.get("SLOW_LIMIT", "30")))
def take_a_second(delivery) -> None:
    Effect.objects.create(name="began", value=str(delivery.payload))
    time.sleep(1)
    Effect.objects.create(name="ended", value=str(delivery.payload))


@task_options(visibility_timeout=float(os.environ.get("SLOW_LIMIT", "30")))
def slow_task() -> None: ...


@consumer("gated", group="aircraft")
def wait_for_the_gate(delivery) -> None:
    Effect.objects.create(name="began", value=str(os.getpid()))
    while not Effect.objects.filter(name="open").exists():
        time.sleep(0.1)
    Effect.objects.create(name="ended", value=str(os.getpid()))


@consumer("stuck", group="aircraft")
def take_for_ever(delivery) -> None:
    Effect.objects.create(name="began", value=str(delivery.payload))
    time.sleep(3600)


@consumer("garbage", group="aircraft")
def tell_how_garbage_is_collected(delivery) -> None:
    Effect.objects.create(name="garbage", value=f"every {gc.get_threshold()[0]}, without {gc.get_freeze_count()}")


@consumer("hang", group="aircraft")
@consumer("deaf", group="aircraft")
def do_nothing(delivery) -> None:
    pass


def hang(*, topic: str, **_: object) -> None:
    """A receiver that never returns: signals are announced in the process's control loop."""
    while topic == "hang":
        time.sleep(1)
    if topic == "deaf":
        ctypes.PyDLL(None).sleep(3600)  # and no other thread of the process runs meanwhile


delivery_settled.connect(hang)
