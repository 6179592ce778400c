"""Batches inside a TestCase, whose transaction never commits."""

from typing import Any

import pytest

from sqlqueue import Batch, Delivery
from sqlqueue.testing import drain
from tests.consuming import Consuming
from tests.contrib.batches.following import figures

pytestmark = pytest.mark.once


@pytest.mark.django_db
def test_drain_ends_batches(settings: Any) -> None:
    consuming = Consuming()
    called: list[Any] = []

    def handle(delivery: Delivery) -> None:
        if delivery.payload:
            Batch.of(delivery).publish("t", delivery.payload - 1)

    consuming.consumer("t", handle)
    consuming.consumer("called", lambda delivery: called.append(delivery.payload))
    try:
        with Batch(on_finish=("called", "empty")):
            pass
        with Batch(on_success=("called", "full")) as batch:
            batch.publish("t", 2)
        drain()
    finally:
        consuming.end()
    assert sorted(called) == ["empty", "full"]
    assert figures(batch.id) == (3, 3, 0)
