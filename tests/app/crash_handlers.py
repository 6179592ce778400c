"""Handlers for consumer processes that tests freeze and kill: the payload says what a handler is to do.

notes: a file to which it appends a line when it begins and when it ends, whatever becomes of its transaction;
wait_for: a file that it waits for, at its first attempt; sleep: seconds; then: "die", "kill" (by SIGKILL), or at the
first attempt "reject" or "fail"; say: the text of that error.
"""

import os
import signal
import time
from pathlib import Path

from sqlqueue import Batch, Delivery, HandOver, Reject, consumer
from sqlqueue.consumers.engine.throttle import LINGER, Pace
from tests.app.models import Effect

HANDLED = "handled"

if "STEADY" in os.environ:  # the process takes itself for one that settles often, of a log that grows by so much

    def _measure(pace: Pace, now: float, highest: int) -> None:
        pace.linger, pace.ahead = LINGER, int(os.environ["STEADY"])

    Pace.measure = _measure  # type: ignore[method-assign]


def note(delivery: Delivery, what: str) -> None:
    """Append one line; lines of several processes do not mix."""
    file = os.open(delivery.payload["notes"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, f"{what} {delivery.id} {delivery.attempt}\n".encode())
    finally:
        os.close(file)


def handle(delivery: Delivery) -> None:
    """Do what the payload says, and leave an Effect: the message's id, and the attempt."""
    todo = delivery.payload
    note(delivery, "begin")
    if todo.get("then") == "die":
        os._exit(3)
    if todo.get("then") == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    Effect.objects.create(name=HANDLED, value=f"{delivery.id} {delivery.attempt}")
    time.sleep(todo.get("sleep", 0))
    if delivery.attempt == 1 and "wait_for" in todo:
        while not Path(todo["wait_for"]).exists():
            time.sleep(0.01)
    note(delivery, "end")
    if todo.get("then") == "reject" and delivery.attempt == 1:
        raise Reject(todo.get("say", "at the first attempt"))
    if todo.get("then") == "fail" and delivery.attempt == 1:
        raise ValueError(todo.get("say", "at the first attempt"))


@consumer("steady", max_attempts=20, backoff=0.05, jitter=0)
def handle_steadily(delivery: Delivery) -> None:
    handle(delivery)


@consumer("growing", max_attempts=20, backoff=0.05, jitter=0)
def handle_and_add(delivery: Delivery) -> None:
    """Add members of topic "steady" to the batch, one of each key that the payload says in `add`."""
    handle(delivery)
    payload = {"notes": delivery.payload["notes"]}
    for key in delivery.payload["add"]:
        Batch.of(delivery).publish("steady", payload, key=key, id=f"{delivery.id}-{key}")


@consumer("fanning", max_attempts=20, backoff=0.05, jitter=0)
def handle_in_a_block(delivery: Delivery) -> None:
    """Publish a batch of two members of topic "steady", and handle the message between the two."""
    payload = {"notes": delivery.payload["notes"]}
    with Batch(on_finish=("called", payload)) as batch:
        batch.publish("steady", payload, key="a")
        handle(delivery)
        batch.publish("steady", payload, key="b")


@consumer("deadly", max_attempts=3, backoff=0.05, jitter=0)
def handle_what_kills(delivery: Delivery) -> None:
    handle(delivery)


@consumer("unordered", atomic=True, ordering="none", max_attempts=20)
def handle_in_any_order(delivery: Delivery) -> None:
    handle(delivery)


@consumer("keyed", ordering="none", concurrency_limit_per_key=1, max_attempts=20)
def handle_of_a_key(delivery: Delivery) -> None:
    handle(delivery)


@consumer("once", max_attempts=1)
def handle_once(delivery: Delivery) -> None:
    handle(delivery)


@consumer("once-batches", batch=True, batch_size=20, max_attempts=1)
def handle_batches_once(deliveries: list[Delivery]) -> None:
    for delivery in deliveries:
        handle(delivery)


@consumer("endless", max_attempts=None, backoff=0.05, jitter=0)
def handle_without_end(delivery: Delivery) -> None:
    handle(delivery)


@consumer("atomic", atomic=True, max_attempts=20, backoff=0.05, jitter=0)
def handle_atomically(delivery: Delivery) -> None:
    handle(delivery)


@consumer("batches", atomic=True, batch=True, batch_size=20, max_attempts=20, backoff=0.05, jitter=0)
def handle_batches(deliveries: list[Delivery]) -> None:
    for delivery in deliveries:
        handle(delivery)


@consumer("grouped", atomic=True, commit_every=20, max_attempts=20, backoff=0.05, jitter=0)
def handle_in_groups(delivery: Delivery) -> None:
    handle(delivery)


@consumer("kept", keep_results=3600, max_attempts=20, backoff=0.05, jitter=0)
def handle_and_return(delivery: Delivery) -> dict[str, object]:
    handle(delivery)
    return {"id": delivery.id, "attempt": delivery.attempt}


@consumer("called", max_attempts=20, backoff=0.05, jitter=0)
def handle_and_reply(delivery: Delivery) -> int:
    handle(delivery)
    return delivery.attempt


@consumer("kept-atomic", atomic=True, keep_results=3600, max_attempts=20, backoff=0.05, jitter=0)
def handle_and_return_in_one(delivery: Delivery) -> dict[str, object]:
    handle(delivery)
    return {"id": delivery.id, "attempt": delivery.attempt}


@consumer("handed", max_attempts=20, backoff=0.05, jitter=0)
def hand_over(delivery: Delivery) -> None:
    handle(delivery)
    raise HandOver(str(delivery.attempt))


@consumer("handed-atomic", atomic=True, max_attempts=20, backoff=0.05, jitter=0)
def hand_over_in_one(delivery: Delivery) -> None:
    handle(delivery)
    raise HandOver(str(delivery.attempt))
