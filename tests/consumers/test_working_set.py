"""The working set: an iteration visits the partitions that have something to do, however many a process owns."""

from typing import Any

import pytest

from sqlqueue import NewMessage, publish, publish_many
from sqlqueue.consumers.engine.subscriber import Subscriber
from sqlqueue.operations.topics import pause, resume
from tests.consumers.test_reading import OpenPublish
from tests.counting import Counter
from tests.logs import LOG
from tests.steady import SETTINGS, Steady, settle

MANY = 60  # partitions

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("steady")]


@pytest.fixture
def seen(steady: Steady, settings: Any) -> list[object]:
    settings.SQLQUEUE = {**SETTINGS, "PARTITIONS": MANY}
    return []


@pytest.fixture
def rested(steady: Steady, seen: list[object]) -> Subscriber:
    """A subscriber of many partitions that has handled a message of each key, and rests."""
    publish_many("t", [NewMessage("first", key=f"{number}") for number in range(2 * MANY)])
    subscriber = steady.start(lambda delivery: seen.append(delivery.payload), groups="ab")
    while subscriber.working_set.partitions:
        look(subscriber)
    seen.clear()
    return subscriber


def look(subscriber: Subscriber) -> None:
    subscriber._poll_at = 0.0
    subscriber.run_once()


def visited(subscriber: Subscriber, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list in which each iteration notes how many partitions it visits."""
    counts: list[int] = []
    advance = subscriber.dispatcher.advance

    def noted(partitions: Any, *values: Any, **options: Any) -> bool:
        counts.append(len(partitions))
        return advance(partitions, *values, **options)

    monkeypatch.setattr(subscriber.dispatcher, "advance", noted)
    return counts


def test_only_what_a_message_concerns_is_visited(
    rested: Subscriber, seen: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = visited(rested, monkeypatch)
    look(rested)
    publish("t", "next", key="7")
    rested.notify()
    rested.run_once()
    assert seen == ["next", "next"]
    assert counts == [0, 2], "a partition of each group"
    settle(rested, Counter())
    look(rested)
    assert counts[-1] == 0


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_a_late_commit_in_a_partition_that_rests_is_found(rested: Subscriber, seen: list[object]) -> None:
    """Its offset is lower than that of what was handled meanwhile in another partition."""
    now = rested.clock()
    late = OpenPublish("late", key="3")
    for number in range(3):
        publish("t", number, key="8")
        rested.notify()
        rested.run_once()
    assert seen == [0, 0, 1, 1, 2, 2]
    late.commit()
    for later in range(1, 4):
        rested.clock = lambda later=later: now + later
        look(rested)
    assert seen[6:] == ["late", "late"]


def test_a_group_that_was_paused_while_all_rested_starts_nothing(rested: Subscriber, seen: list[object]) -> None:
    """Options are read before something starts, if they are not of this second."""
    now = rested.clock()
    pause(LOG, "t", "a")
    publish("t", "next", key="7")
    rested.clock = lambda: now + 1.0
    rested.notify()
    rested.run_once()
    assert seen == ["next"], "of the other group"
    resume(LOG, "t", "a")
    rested.clock = lambda: now + 2.0
    look(rested)
    look(rested)
    assert seen == ["next", "next"]


def test_partitions_that_were_lost_and_acquired_again_are_visited(rested: Subscriber, seen: list[object]) -> None:
    rested.settler.lose([assigned.lease for assigned in rested.ownership.assigned_partitions()])
    look(rested)
    publish("t", "next", key="7")
    rested._balance_at = 0.0
    rested.notify()
    rested.run_once()
    assert seen == ["next", "next"]
