"""Moves of a group: where they are refused, and a partition that no process has acquired."""

import pytest
from django.db import transaction

from sqlqueue import ConfigurationError, publish, publish_many
from sqlqueue.database.horizon import highest_offset
from sqlqueue.exceptions import HorizonUnknown
from sqlqueue.log.groups import register
from sqlqueue.models import ConsumerGroup
from sqlqueue.operations import move as moving
from sqlqueue.operations.move import move
from sqlqueue.testing import drain
from tests.consuming import Consuming, offset_row
from tests.logs import LOG
from tests.transactions import OpenTransaction


def test_a_partition_that_no_process_has_acquired_begins_at_the_target(consuming: Consuming) -> None:
    seen: list[int] = []
    consuming.consumer("t", lambda delivery: seen.append(delivery.payload))
    publish_many("t", range(20))
    register(LOG, "default", "t")
    for partition in range(4):
        move(LOG, "default", "t", highest_offset(LOG), partition=partition)
    assert offset_row("t").position == highest_offset(LOG)
    drain()
    assert seen == []


def test_partitions_that_no_process_has_acquired_begin_at_the_target(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "ROWS_AT_ONCE", 2)
    seen: list[int] = []
    consuming.consumer("t", lambda delivery: seen.append(delivery.payload))
    publish_many("t", range(20))
    register(LOG, "default", "t")
    skipped = highest_offset(LOG)
    move(LOG, "default", "t", skipped)
    assert ConsumerGroup.objects.get().start == 0  # where it began, as before
    publish_many("t", range(20, 40))
    drain()
    assert sorted(seen) == [*range(20, 40)]


@pytest.mark.parametrize("partition", [None, 0, 99])
def test_what_is_not_registered_cannot_be_reset(consuming: Consuming, partition: int | None) -> None:
    if partition == 99:
        register(LOG, "default", "t")
    with pytest.raises(ConfigurationError, match="not registered there"):
        move(LOG, "default", "t", 0, partition=partition)


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_it_is_refused_in_a_transaction_which_would_hold_up_publishers(consuming: Consuming) -> None:
    publish_many("t", range(3))
    register(LOG, "default", "t")
    with transaction.atomic(), pytest.raises(ConfigurationError, match="outside of transaction"):
        move(LOG, "default", "t", 0)


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_it_does_not_wait_for_ever_for_a_transaction_that_publishes(consuming: Consuming) -> None:
    publish_many("t", range(3))
    register(LOG, "default", "t")
    with OpenTransaction() as open_transaction:
        open_transaction.do(lambda: publish("others", 1))
        with pytest.raises(HorizonUnknown, match="a transaction that publishes has been open"):
            move(LOG, "default", "t", 0, timeout=0.3)
        open_transaction.commit()
    assert move(LOG, "default", "t", 0) == 0
