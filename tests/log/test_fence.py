"""The fence of several partitions at once: each moves behind its own token, and only on the server that gave it."""

from collections.abc import Sequence

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from sqlqueue.core.partition.ref import HeldLease, PartitionRef
from sqlqueue.database.server_identity import ServerIdentity, SessionReplaced
from sqlqueue.log import fence
from sqlqueue.log.fence import Move, advance_all
from sqlqueue.models import Offset
from tests.factories import OffsetFactory
from tests.logs import LOG

pytestmark = pytest.mark.django_db(transaction=True)


def partitions(count: int, server: ServerIdentity | None = None, stale: Sequence[int] = ()) -> list[HeldLease]:
    """Make so many, and return their leases; those of the stale ones are of a former owner."""
    leases = []
    for number in range(count):
        offset = OffsetFactory(topic="t", consumer_group="g", partition=number, position=10, fencing_token=7)
        token = 6 if number in stale else 7
        leases.append(HeldLease(PartitionRef("g", "t", number), offset.id, token))
        leases[-1].server = server
    return leases


def stored() -> list[tuple[int, int, int]]:
    return list(Offset.objects.order_by("partition").values_list("position", "offset_acked", "claimed_to"))


def test_several_partitions_move_by_one_statement() -> None:
    server = ServerIdentity(LOG)
    leases = partitions(3, server)
    server.make_sure()
    moves = [Move(lease, 20 + number, 15, 30) for number, lease in enumerate(leases)]
    for _ in range(2):  # the reply to the first one was lost
        with CaptureQueriesContext(connection) as queries:
            assert advance_all(LOG, moves) == [True] * 3
        assert len(queries) == 1
    assert stored() == [(20, 15, 30), (21, 15, 30), (22, 15, 30)]
    assert advance_all(LOG, [Move(lease, 5, 5, 5) for lease in leases]) == [True] * 3
    assert stored() == [(20, 15, 30), (21, 15, 30), (22, 15, 30)], "never back"


@pytest.mark.parametrize("at_once", [1, 2, 3, 100])
def test_each_is_told_apart_whatever_goes_with_one_statement(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fence, "AT_ONCE", at_once)
    leases = partitions(5, stale=[1, 4])
    assert advance_all(LOG, [Move(lease, 20, 20, 20) for lease in leases]) == [True, False, True, True, False]
    assert stored() == [(20 if number in (0, 2, 3) else 10,) * 3 for number in range(5)]


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_on_another_server_none_of_them_moves() -> None:
    server = ServerIdentity(LOG)
    leases = partitions(3, server)
    server.make_sure()
    there = server.session
    elsewhere = there._replace(values=tuple(f"{value}0" for value in there.values))  # as the server would find it
    server.session, connection.sqlqueue_session = elsewhere, (connection.connection, elsewhere)
    with pytest.raises(SessionReplaced):
        advance_all(LOG, [Move(lease, 20, 20, 20) for lease in leases])
    assert stored() == [(10, 10, 10)] * 3
