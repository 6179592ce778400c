"""What was decided and could not be written is not forgotten: the process ends without moving past it."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import Error, connection

from sqlqueue import publish
from sqlqueue.models import PartitionLease, Receipt
from tests.consuming import Consuming


@contextmanager
def without_receipts() -> Iterator[None]:
    """Let every settle that writes receipts fail, in a way that no waiting mends."""
    table = Receipt._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} RENAME TO {table}_away")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE {table}_away RENAME TO {table}")


def test_a_process_whose_settle_fails_for_good_leaves_its_messages_to_the_next(consuming: Consuming) -> None:
    attempts: list[int] = []

    @consuming.consumer("t", backoff=0)
    def fail_once(delivery) -> None:
        attempts.append(delivery.attempt)
        if len(attempts) == 1:
            raise ValueError("once")

    publish("t", 1, key="a")
    with without_receipts(), pytest.raises(Error):
        consuming.subscriber(residents=False).run(drain=True)
    assert attempts == [1]
    PartitionLease.objects.update(valid_until=None, holder="")  # as its supervisor does, or its expiry
    consuming.drain()
    assert attempts == [1, 2]
