"""What get_batch tells agrees with itself, beside settles, and of what plain SQL has written."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction

from sqlqueue import Batch, NewMessage
from sqlqueue.contrib.batches import ends, members
from sqlqueue.contrib.batches.effect import MEMBERS
from sqlqueue.contrib.batches.members import Member
from sqlqueue.contrib.batches.models import BatchPart
from sqlqueue.core.effects import EffectWrite
from sqlqueue.core.partition.ref import HeldLease, PartitionRef
from tests.consuming import Consuming
from tests.contrib.batches.following import figures, register, standing
from tests.logs import LOG


def test_one_that_ends_between_its_statements_is_not_told_to_have_ended_unsettled(consuming: Consuming) -> None:
    register(consuming, "sync", lambda delivery: None)
    consuming.drain()
    with Batch() as batch:
        batch.publish("t", 1)
    statements = 0

    def end_after_the_first(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        nonlocal statements
        statements += 1
        found = execute(sql, params, many, context)
        if statements == 1:
            BatchPart.objects.filter(batch=batch.id).update(outstanding=0)
            ends.check(LOG, [batch.id])
        return found

    with connection.execute_wrapper(end_after_the_first):
        status = standing(batch.id)
    assert statements > 2
    assert (status.state, status.pending) == ("running", 0)
    assert standing(batch.id).state == "succeeded"


def test_no_cursor_outlives_its_statement(consuming: Consuming, monkeypatch: pytest.MonkeyPatch) -> None:
    """PgBouncer would give the next one to another session."""
    with Batch() as batch:
        batch.publish("t", 1)
    monkeypatch.setattr(connection, "chunked_cursor", None)
    assert figures(batch.id) == (1, 0, 0)


@pytest.mark.parametrize("change", ["settled", "given back"])
def test_a_number_that_no_member_has_changes_nothing(consuming: Consuming, change: str) -> None:
    register(consuming, "sync", lambda delivery: None)
    consuming.drain()
    with Batch() as batch:
        batch.publish("t", 1)
    part = BatchPart.objects.get()
    headers = Member(batch.id, part.part * members.BITS + 7).headers
    lease = HeldLease(PartitionRef("default", "t", 0, 0), 1, 2)
    with transaction.atomic():
        if change == "settled":
            MEMBERS.settle(LOG, [EffectWrite(lease, 1, 1, MEMBERS, None, headers)])
        else:
            MEMBERS.returned(LOG, "t", "default", [headers])
    assert figures(batch.id) == (1, 0, 0)
    consuming.drain()
    assert standing(batch.id).state == "succeeded"


def test_a_group_takes_over_what_it_settles_of_members_without_a_group_and_no_more(
    consuming: Consuming, called: list[Any]
) -> None:
    with Batch() as batch:
        batch.publish_many("t", [NewMessage(n, key="k") for n in range(3)])
    last = BatchPart.objects.order_by("part").last()
    assert last is not None
    headers = Member(batch.id, last.part * members.BITS).headers
    with transaction.atomic():
        MEMBERS.settle(
            LOG, [EffectWrite(HeldLease(PartitionRef("away", "t", 0, 0), 1, 2), 3, 1, MEMBERS, True, headers)]
        )
    assert figures(batch.id) == (3, 1, 0)
    MEMBERS.group_removed(LOG, "t", "away")
    assert figures(batch.id)[0] == 2
    register(consuming, "sync", lambda delivery: None)
    consuming.drain()
    assert standing(batch.id).state == "succeeded"
