"""A new group that begins at the log's end waits for open publishers, and delays no other group."""

import pytest
from django.db import transaction

from sqlqueue import publish
from sqlqueue.models import ConsumerGroup
from tests.consuming import Consuming
from tests.processes import wait_until
from tests.transactions import OpenTransaction

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database("mariadb", "mysql", "postgresql")]


@pytest.fixture
def seen(consuming: Consuming) -> dict[str, list[int]]:
    seen: dict[str, list[int]] = {"old": [], "new": []}
    consuming.consumer("t", lambda delivery: seen["old"].append(delivery.payload), group="old")
    consuming.consumer("t", lambda delivery: seen["new"].append(delivery.payload), group="new", start="latest")
    return seen


def registered(group: str) -> bool:
    return ConsumerGroup.objects.filter(topic="t", consumer_group=group).exists()


def test_other_groups_work_while_one_waits_for_an_open_publisher(
    consuming: Consuming, seen: dict[str, list[int]]
) -> None:
    publish("t", 1)
    with OpenTransaction() as slow:
        slow.do(lambda: publish("t", 2))
        publish("t", 3)
        consuming.start()
        wait_until(lambda: sorted(seen["old"]) == [1, 3])
        assert not registered("new")
        publish("t", 4)  # published from now on
        slow.commit()
    wait_until(lambda: seen["new"] == [4])
    assert registered("new")
    wait_until(lambda: sorted(seen["old"]) == [1, 2, 3, 4])


def test_a_stop_ends_the_waiting(consuming: Consuming, seen: dict[str, list[int]]) -> None:
    publish("t", 1)
    with OpenTransaction() as slow:
        slow.do(lambda: publish("t", 2))
        publish("t", 3)
        host = consuming.start()
        wait_until(lambda: seen["old"])
        host.stop(timeout=1.0)
        assert not registered("new")


def test_what_is_published_while_it_waits_is_not_missed_though_it_commits_late(
    consuming: Consuming, seen: dict[str, list[int]]
) -> None:
    publish("t", 1)
    with OpenTransaction() as before, OpenTransaction() as after:
        before.do(lambda: publish("t", 2))
        publish("t", 3)
        consuming.start()
        wait_until(lambda: seen["old"])
        after.do(lambda: publish("t", 4))
        before.commit()
        with transaction.atomic():
            publish("t", 5)
        wait_until(lambda: 5 in seen["new"] or not registered("new"))
        after.commit()
    wait_until(lambda: sorted(seen["new"]) == [4, 5])


def test_a_drain_waits_until_the_group_is_registered(consuming: Consuming, seen: dict[str, list[int]]) -> None:
    publish("t", 1)
    with OpenTransaction() as slow:
        slow.do(lambda: publish("t", 2))
        publish("t", 3)
        host = consuming.start(drain=True)
        wait_until(lambda: sorted(seen["old"]) == [1, 3])
        assert host.running
        slow.commit()
    host.join()
    assert registered("new")
    assert seen["new"] == []
