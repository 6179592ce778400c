"""What consumer processes of the benchmarks run."""

import os
import time
from pathlib import Path

from sqlqueue import consumer


@consumer("calls")
def echo(delivery) -> object:
    """Reply with what it was called with."""
    return delivery.payload


@consumer("delayed")
def note_lateness(delivery) -> None:
    """Write down by how many seconds it comes after its due time."""
    late = time.time() - delivery.payload["due"]
    with Path(os.environ["LATENESS_FILE"]).open("a") as file:
        file.write(f"{delivery.payload['kind']} {late}\n")


@consumer("heavy")
@consumer("due-at-once")
def take(delivery) -> None:
    """Decode what it gets."""
    delivery.payload  # noqa: B018


@consumer("heavy", group="batches", batch=True, batch_size=500)
def take_together(deliveries) -> None:
    for delivery in deliveries:
        delivery.payload  # noqa: B018


@consumer("heavy", group="on-the-loop")
async def take_on_the_loop(delivery) -> None:
    delivery.payload  # noqa: B018
