"""An archivist holds every slice of a group that shares its partitions; a process that serves some partitions holds
slices of these."""

from typing import Any

import pytest

from sqlqueue import publish_many
from sqlqueue.core.slices import lease_number
from sqlqueue.leases import heartbeat
from sqlqueue.leases.archivist import archivist
from sqlqueue.leases.assignment import Balancer, Holding
from sqlqueue.models import PartitionLease
from tests.consuming import Consuming

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

GROUP, TOPIC, SLICES = "default", "t", 3


@pytest.fixture(autouse=True)
def shared(consuming: Consuming, settings: Any) -> None:
    """A group of two partitions with three slices each, which has read everything."""
    settings.SQLQUEUE = {**settings.SQLQUEUE, "PARTITIONS": 2}
    publish_many(TOPIC, range(40))
    consuming.consumer(TOPIC, lambda delivery: None, ordering="none", sharing=SLICES)
    consuming.drain()


def holders() -> set[str]:
    assert PartitionLease.objects.count() == 2 * SLICES
    return set(PartitionLease.objects.values_list("holder", flat=True))


def test_an_archivist_holds_them_all() -> None:
    with archivist("default", TOPIC, timeout=30, group=GROUP) as holder:
        assert holders() == {holder.name}
        assert holder.as_owner(lambda: 5) == 5


def test_a_process_that_serves_some_partitions_takes_their_slices_only() -> None:
    sharing = {(GROUP, TOPIC): SLICES}
    heartbeat.beat("default", "all of them", [(GROUP, TOPIC)], 300, sharing=sharing)
    heartbeat.beat("default", "the second", [(GROUP, TOPIC)], 300, partitions="1", sharing=sharing)
    takes: dict[str, set[int]] = {}
    for name, served in (("all of them", None), ("the second", frozenset({1}))):
        holding = Holding(2, set(), served, SLICES)
        plan = Balancer("default", name, 30.0).compare({(GROUP, TOPIC): holding}, 0.0)[GROUP, TOPIC]
        takes[name] = set(plan.take)
    of_the_second = {lease_number(1, slice, SLICES) for slice in range(SLICES)}
    assert takes["the second"] < of_the_second
    assert takes["all of them"] - of_the_second == {lease_number(0, slice, SLICES) for slice in range(SLICES)}
    assert sorted(len(took & of_the_second) for took in takes.values()) == [1, 2]
