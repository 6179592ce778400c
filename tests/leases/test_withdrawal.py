"""A subscriber that leaves a group to others: what the others see, and when it may."""

import pytest

from sqlqueue.consumers.background.lease_renewer import LeaseRenewer
from sqlqueue.consumers.process.liveness import Liveness
from sqlqueue.leases import heartbeat
from sqlqueue.leases.assignment import LivingSubscribers
from sqlqueue.leases.heartbeat import Shown
from sqlqueue.log.groups import register
from sqlqueue.models import SubscriberHeartbeat
from tests.consuming import Consuming
from tests.logs import LOG

DURATION, ME, OTHER = 60.0, "me", "other"
LONG, QUICK = ("long", "z"), ("brief", "a")  # the second one comes first: its row says what it serves


def beat(subscriber: str) -> None:
    heartbeat.beat(LOG, subscriber, [LONG, QUICK], DURATION)


def living() -> dict[str, set[str]]:
    """Return who shares each group's partitions, as others see it."""
    found = LivingSubscribers(LOG).look([LONG, QUICK])
    return {group: set(subscribers) for (group, _), subscribers in found.items()}


@pytest.fixture
def groups(transactional_db: None) -> None:
    for group, topic in (LONG, QUICK):
        register(LOG, group, topic)


@pytest.mark.parametrize("may", [False, True])
def test_it_leaves_a_group_only_to_another_consumer_process(groups: None, may: bool) -> None:
    beat(ME)
    beat("spark:stream")
    heartbeat.beat(LOG, OTHER, [QUICK if may else LONG], DURATION)
    assert heartbeat.withdraw(LOG, ME, QUICK) is may
    assert SubscriberHeartbeat.objects.filter(subscriber=ME).count() == (1 if may else 2)


def test_it_leaves_no_group_to_one_that_has_died(groups: None) -> None:
    beat(ME)
    heartbeat.beat(LOG, OTHER, [QUICK], 0.0)
    assert not heartbeat.withdraw(LOG, ME, QUICK)


def test_a_heartbeat_that_is_under_way_neither_undoes_a_withdrawal_nor_a_return(
    groups: None, consuming: Consuming
) -> None:
    """The others see it in its other group all the while, also if the row that said what it serves is gone."""
    beat(OTHER)
    for group, topic in (LONG, QUICK):
        consuming.consumer(topic, lambda delivery: None, group=group)
    ownership = consuming.subscriber(background_tasks=False).ownership
    changes: list[frozenset[tuple[str, str]]] = []

    def show() -> Shown:  # it is asked for within a beat
        if changes:
            ownership.withdrawn = changes.pop()
            if ownership.withdrawn:
                assert heartbeat.withdraw(LOG, ownership.subscriber, QUICK)
        return Shown()

    renewer = LeaseRenewer(ownership, 1.0, show, lambda lost: None, Liveness())
    both = {OTHER, ownership.subscriber}
    renewer.beat()
    assert living() == {"long": both, "brief": both}
    changes.append(frozenset([QUICK]))
    renewer.beat()
    assert living() == {"long": both, "brief": {OTHER}}
    changes.append(frozenset())
    renewer.beat()
    assert living() == {"long": both, "brief": both}
