"""What a person changes in the tables, with plain SQL, is noticed by the owner within a heartbeat."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from sqlqueue import Delivery, Retry, publish
from sqlqueue.consumers.engine import reader
from sqlqueue.database.log import Log
from sqlqueue.log import fetch
from sqlqueue.models import DeliveryState
from tests.consuming import QUICK, Consuming
from tests.processes import wait_until

PAST, FUTURE = "2000-01-01 00:00:00", "2099-01-01 00:00:00"
Changes = Callable[[str], None]


@pytest.fixture
def seen(consuming: Consuming, settings: Any) -> list[tuple[Any, int]]:
    """What a handler whose first attempts fail, for an hour, got: payload and attempt."""
    settings.SQLQUEUE = {**QUICK, "LEASE_DURATION": 1.0, "HEARTBEAT_INTERVAL": 0.2}
    seen: list[tuple[Any, int]] = []

    @consuming.consumer("jobs", max_attempts=None)
    def handle(delivery: Delivery) -> None:
        seen.append((delivery.payload, delivery.attempt))
        if len(seen) == 1:
            raise Retry(delay=3600)

    publish("jobs", "first", key="k")
    publish("jobs", "second", key="k")
    consuming.start()
    wait_until(lambda: DeliveryState.objects.filter(retry_count=1, in_flight=0).exists())
    return seen


def change(columns: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE sqlqueue_delivery_state SET {columns}")


@pytest.mark.parametrize(
    ("columns", "attempt"),
    [
        (f"invisible_until = '{PAST}'", 2),
        (f"invisible_until = '{PAST}', retry_count = 0", 1),
        (f"invisible_until = '{PAST}', retry_count = 7", 8),
    ],
)
def test_a_failed_delivery_that_is_made_due_is_delivered(
    seen: list[tuple[Any, int]], columns: str, attempt: int
) -> None:
    change(columns)
    wait_until(lambda: ("second", 1) in seen, message="the change was not noticed")
    assert seen == [("first", 1), ("first", attempt), ("second", 1)]


@pytest.mark.parametrize("until", [None, PAST, FUTURE])
def test_one_that_is_acked_lets_the_next_of_its_key_go_on(seen: list[tuple[Any, int]], until: str | None) -> None:
    acked = "acked = TRUE" if connection.vendor == "postgresql" else "acked = 1"
    change(acked + (f", invisible_until = '{until}'" if until else ""))
    wait_until(lambda: ("second", 1) in seen, message="the change was not noticed")
    assert seen == [("first", 1), ("second", 1)]


def test_a_changed_number_of_attempts_counts_when_the_message_is_next_due(
    seen: list[tuple[Any, int]], consuming: Consuming
) -> None:
    change("retry_count = 4")
    change(f"invisible_until = '{PAST}'")
    wait_until(lambda: len(seen) == 3)
    assert seen[1] == ("first", 5)


def test_what_is_not_due_is_asked_for_by_the_rows_own_keys(
    seen: list[tuple[Any, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many at once, and no row that its owner knows to be due, or acked: these may be thousands."""
    asked: list[int] = []

    def note(log: Log, rows: Any, server: Any = None) -> Any:
        asked.append(sum(map(len, rows.values())))
        return fetch.changed(log, rows, server)

    monkeypatch.setattr(reader, "changed", note)
    wait_until(lambda: len(asked) > 2)
    assert set(asked) == {1}
    change(f"invisible_until = '{PAST}'")
    wait_until(lambda: len(seen) == 3)
