"""A subscriber that leaves a group to others: what the others see, and when it may."""

import pytest

from sqlqueue.consumers.background.lease_renewer import LeaseRenewer
from sqlqueue.database.log import Log
from sqlqueue.leases import heartbeat, withdrawal
from sqlqueue.leases.subscribers import LivingSubscribers
from sqlqueue.log.groups import register
from sqlqueue.models import SubscriberHeartbeat
from tests.consuming import Consuming

ALIAS, DURATION, ME, OTHER = "default", 60.0, "me", "other"
LONG, QUICK = ("long", "z"), ("brief", "a")  # the second one comes first: its row says what it serves


def beat(subscriber: str, partitions: str = "") -> None:
    heartbeat.beat(Log.of(ALIAS), subscriber, [LONG, QUICK], DURATION, partitions=partitions)


def living() -> dict[str, set[str]]:
    """Return who shares each group's partitions, as others see it."""
    found = LivingSubscribers(Log.of(ALIAS)).look([LONG, QUICK])
    return {group: set(subscribers) for (group, _), subscribers in found.items()}


@pytest.fixture
def groups(transactional_db: None) -> None:
    for group, topic in (LONG, QUICK):
        register(Log.of(ALIAS), group, topic)


@pytest.mark.parametrize(("others", "may"), [(None, False), ("", True), ("0-1", True), ("2-3", False), ("0-3", False)])
def test_it_leaves_a_group_only_to_one_that_serves_the_same_partitions_or_all(
    groups: None, others: str | None, may: bool
) -> None:
    beat(ME, "0-1")
    beat("spark:stream")
    if others is not None:
        beat(OTHER, others)
    assert withdrawal.withdraw(Log.of(ALIAS), ME, QUICK, "0-1") is may
    assert SubscriberHeartbeat.objects.filter(subscriber=ME).count() == (1 if may else 2)


def test_it_leaves_no_group_to_one_that_has_died(groups: None) -> None:
    beat(ME)
    heartbeat.beat(Log.of(ALIAS), OTHER, [QUICK], 0.0)
    assert not withdrawal.withdraw(Log.of(ALIAS), ME, QUICK, "")


def test_a_heartbeat_that_is_under_way_neither_undoes_a_withdrawal_nor_a_return(
    groups: None, consuming: Consuming
) -> None:
    """The others see it in its other group all the while, also if the row that said what it serves is gone."""
    beat(OTHER)
    for group, topic in (LONG, QUICK):
        consuming.consumer(topic, lambda delivery: None, group=group)
    ownership = consuming.subscriber(background_tasks=False).ownership
    changes: list[frozenset[tuple[str, str]]] = []

    def activity() -> str:  # it is asked for within a beat
        if changes:
            ownership.withdrawn = changes.pop()
            if ownership.withdrawn:
                assert withdrawal.withdraw(Log.of(ALIAS), ownership.subscriber, QUICK, "")
        return ""

    renewer = LeaseRenewer(ownership, 1.0, "", activity, lambda: 0, lambda lost: None)
    both = {OTHER, ownership.subscriber}
    renewer.beat()
    assert living() == {"long": both, "brief": both}
    changes.append(frozenset([QUICK]))
    renewer.beat()
    assert living() == {"long": both, "brief": {OTHER}}
    changes.append(frozenset())
    renewer.beat()
    assert living() == {"long": both, "brief": both}
