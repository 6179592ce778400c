"""Batches as tests follow them."""

from collections.abc import Callable
from typing import Any

from sqlqueue import BatchStatus, Delivery, get_batch
from sqlqueue.contrib.batches.models import BatchPart
from tests.consuming import Consuming

CALLED = "called"  # the topic that callbacks go to


def standing(id: str) -> BatchStatus:
    found = get_batch(id)
    assert found is not None
    return found


def figures(id: str) -> tuple[int, int, int]:
    """Return (total, done, failed)."""
    status = standing(id)
    return status.total, status.done, status.failed


def counted(id: str) -> tuple[int, int]:
    """Return (acked, dead) members."""
    rows = list(BatchPart.objects.filter(batch=id))
    settled = sum((row.members & ~row.outstanding).bit_count() for row in rows)
    dead = sum(row.dead.bit_count() for row in rows)
    return settled - dead, dead


def register(consuming: Consuming, kind: str, handle: Callable[[Delivery], Any], **options: Any) -> None:
    """Register a handler of topic "t" of this kind."""

    def handle_all(deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            handle(delivery)

    async def handle_async(delivery: Delivery) -> Any:
        return handle(delivery)

    handlers: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
        "sync": (handle, {}),
        "atomic": (handle, {"atomic": True}),
        "async": (handle_async, {}),
        "batch": (handle_all, {"batch": True, "batch_size": 5}),
        "atomic batch": (handle_all, {"batch": True, "batch_size": 5, "atomic": True}),
    }
    function, more = handlers[kind]
    consuming.consumer("t", function, **more, **options)
