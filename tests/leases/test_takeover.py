"""Taking over: what the last owner had in flight is in doubt, whatever publishers do; no lease is left unserved."""

import threading

import pytest
from django.db import connection, connections, transaction

from sqlqueue import publish, publish_many
from sqlqueue.core.settle_plan import TOGETHER
from sqlqueue.database.horizon import highest_offset
from sqlqueue.leases import acquire as acquire_module
from sqlqueue.leases.acquire import AcquiredPartition, acquire
from sqlqueue.leases.assignment import Balancer, Holding
from sqlqueue.leases.heartbeat import beat
from sqlqueue.log import groups
from sqlqueue.models import DeliveryState, Offset, PartitionLease
from tests.logs import LOG
from tests.servers.session import isolate, wait_for_locks


@pytest.fixture(autouse=True)
def topic(transactional_db: None, settings: object) -> None:
    settings.SQLQUEUE = {"TOPICS": {"t": {"partitions": 1}}, "WAKE": False, "LEASE_DURATION": 3600}
    groups.register(LOG, "g", "t")


def take(subscriber: str = "me", horizon: int | None = None) -> list[AcquiredPartition]:
    known = highest_offset(LOG) if horizon is None else horizon
    return acquire(LOG, subscriber, "g", "t", [0], priorities=1, lease_duration=3600, horizon=known)


def claim(to: int) -> None:
    """What an owner that dies then has written before it dispatched."""
    Offset.objects.update(claimed_to=to)
    PartitionLease.objects.update(holder="", valid_until=None)


def test_what_was_dispatched_and_not_settled_is_in_doubt() -> None:
    publish_many("t", range(5))
    first = highest_offset(LOG) - 4
    take("other")
    claim(first + 2)
    (taken,) = take()
    assert [(row.offset, row.in_flight, row.retry_count) for row in taken.rows] == [
        (first + n, TOGETHER, 1) for n in range(3)
    ]
    assert (taken.position, taken.claimed, taken.watermark) == (first + 2, first + 2, first - 1)


def test_the_position_does_not_pass_the_horizon_at_a_takeover() -> None:
    publish_many("t", range(5))
    first = highest_offset(LOG) - 4
    take("other")
    claim(first + 4)
    (taken,) = take(horizon=first + 1)
    assert (taken.position, len(taken.rows)) == (first + 1, 5)


def test_however_many_rows_there_are_all_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acquire_module, "ROWS_AT_ONCE", 7)
    publish_many("t", range(40))
    take("other")
    claim(highest_offset(LOG))
    (taken,) = take()
    assert len(taken.rows) == 40
    assert DeliveryState.objects.count() == 40


def test_a_lease_whose_acquiring_got_no_answer_is_taken_again() -> None:
    beat(LOG, "me", [("g", "t")], 3600)
    take()  # the answer never came
    balancer = Balancer(LOG, "me", 30.0)
    plan = balancer.compare({("g", "t"): Holding(1, set())}, 0.0)["g", "t"]
    assert list(plan.take) == [0]
    (taken,) = take()
    assert taken.token == 2
    assert not balancer.compare({("g", "t"): Holding(1, {0})}, 0.0)["g", "t"].take
    assert take("other") == []


@pytest.mark.database("mariadb", "mysql", "postgresql")
@pytest.mark.parametrize("level", ["read committed", "repeatable read"])
def test_an_open_publisher_does_not_hold_up_a_takeover(level: str) -> None:
    publish("t", 1)
    take("other")
    published, go_on = threading.Event(), threading.Event()

    def publisher() -> None:
        try:
            with transaction.atomic():
                publish("t", 2)
                published.set()
                go_on.wait(60)
        finally:
            connection.close()

    thread = threading.Thread(target=publisher)
    thread.start()
    assert published.wait(30)
    try:
        publish("t", 3)
        claim(highest_offset(LOG))
        isolate(level)
        wait_for_locks(5)
        (taken,) = take(horizon=0)
        assert len(taken.rows) == 2
    finally:
        go_on.set()
        thread.join()
        connections.close_all()
