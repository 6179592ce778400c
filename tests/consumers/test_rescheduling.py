"""What a person changes in the tables is noticed by the owner."""

from typing import Any

from sqlqueue import Delivery, Retry, publish
from sqlqueue.models import DeliveryState
from tests.consuming import QUICK, Consuming
from tests.processes import wait_until


def test_a_row_that_plain_sql_makes_due_is_delivered_soon(consuming: Consuming, settings: Any) -> None:
    settings.SQLQUEUE = {**QUICK, "LEASE_DURATION": 1.0, "HEARTBEAT_INTERVAL": 0.2}
    attempts: list[int] = []

    @consuming.consumer("jobs")
    def handle(delivery: Delivery) -> None:
        attempts.append(delivery.attempt)
        if delivery.attempt == 1:
            raise Retry(delay=3600)

    publish("jobs", 1)
    consuming.start()
    wait_until(lambda: DeliveryState.objects.filter(retry_count=1, in_flight=0).exists())
    DeliveryState.objects.update(invisible_until="2000-01-01T00:00:00Z")
    wait_until(lambda: attempts == [1, 2], message="the rescheduled message was not delivered")
