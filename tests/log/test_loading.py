"""Messages that are loaded by their offsets: one statement for many partitions, and each group its own rows."""

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from sqlqueue import NewMessage, publish_many
from sqlqueue.core.partition.ref import PartitionRef
from sqlqueue.core.settle_plan import StoredRow
from sqlqueue.log import messages
from sqlqueue.log.messages import Asked, gather, load
from sqlqueue.models import Message
from tests.factories import DeliveryStateFactory
from tests.logs import LOG

pytestmark = pytest.mark.django_db(transaction=True)

PARTITIONS = 3


@pytest.fixture
def offsets(settings: Any) -> dict[int, list[int]]:
    """The offsets of the messages of each partition. The first of each has a row of two groups."""
    settings.SQLQUEUE = {"PARTITIONS": PARTITIONS}
    publish_many("t", [NewMessage({"n": n}, key=f"k{n}") for n in range(30)])
    found: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
    for partition, offset in Message.objects.order_by("offset").values_list("partition", "offset"):
        found[partition].append(offset)
    assert all(len(some) > 1 for some in found.values())
    for partition, some in found.items():
        for group, attempts in (("g", 1), ("h", 7)):
            DeliveryStateFactory(
                topic="t", consumer_group=group, partition=partition, message_offset=some[0], retry_count=attempts
            )
    return found


def asked(offsets: dict[int, list[int]], group: str, count: int | None = None) -> list[Asked]:
    return [Asked(PartitionRef(group, "t", partition), some[:count]) for partition, some in offsets.items()]


def attempts_of(row: StoredRow | None) -> int | None:
    return None if row is None else row.retry_count


@pytest.mark.parametrize("read", [gather, load])
def test_many_partitions_take_one_statement(read: Any, offsets: dict[int, list[int]]) -> None:
    with CaptureQueriesContext(connection) as statements:
        found = read(LOG, asked(offsets, "g", 1))
    assert len(statements) == 1
    for (partition, some), (rows, count) in zip(offsets.items(), found):
        assert count == 1
        ((offset, (row, message)),) = rows.items()
        assert (offset, attempts_of(row), message.offset) == (some[0], 1, some[0]), partition


def test_messages_without_a_row_are_gathered_and_not_loaded(offsets: dict[int, list[int]]) -> None:
    of_all = asked(offsets, "g")
    for one, (rows, count) in zip(of_all, gather(LOG, of_all)):
        assert count == len(one.offsets)
        assert [(offset, attempts_of(rows[offset][0])) for offset in one.offsets] == [
            (offset, 1 if offset == one.offsets[0] else None) for offset in one.offsets
        ]
    for one, (rows, count) in zip(of_all, load(LOG, of_all)):
        assert (list(rows), count) == ([one.offsets[0]], len(one.offsets))


@pytest.mark.parametrize("read", [gather, load])
def test_groups_that_ask_for_the_same_messages_get_their_own_rows(read: Any, offsets: dict[int, list[int]]) -> None:
    both = [one for pair in zip(asked(offsets, "g", 1), asked(offsets, "h", 1)) for one in pair]
    for one, (rows, _) in zip(both, read(LOG, both)):
        ((row, message),) = rows.values()
        assert (row.retry_count, message.offset) == (1 if one.ref.group == "g" else 7, one.offsets[0])


@pytest.mark.parametrize("bound", ["AT_ONCE", "PARTITIONS_AT_ONCE"])
@pytest.mark.parametrize("read", [gather, load])
def test_a_statement_has_a_bound(
    read: Any, bound: str, offsets: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, bound, 2)
    with CaptureQueriesContext(connection) as statements:
        found = read(LOG, asked(offsets, "g", 1))
    assert len(statements) == 2
    assert [list(rows) for rows, _ in found] == [some[:1] for some in offsets.values()]


@pytest.mark.parametrize("read", [gather, load])
def test_a_deleted_message_is_missing_in_its_partition_alone(read: Any, offsets: dict[int, list[int]]) -> None:
    gone = offsets[1][0]
    Message.objects.filter(offset=gone).delete()
    first, second, third = read(LOG, asked(offsets, "g", 1))
    assert first[0]
    assert third[0]
    assert second[0].get(gone, (None, None))[1] is None
