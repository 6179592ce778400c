"""Groups that wait for the handlers of others: what the checker finds, and what explains a wait."""

import pytest

from tests.soak.starving import BOUND
from tests.soak.stories import ONE, OTHER, History, found_in
from tests.soak.workload import BRIEF, LABOR

pytestmark = pytest.mark.once

LATER, BEGIN, END = BOUND + 0.5, 100.0, 130.0  # of a run whose beginning explains nothing any more


def story() -> History:
    history = History()
    history.record.until = 200.0
    history.publish("quick", topic=BRIEF, at=BEGIN, told=0.0)
    return history


def test_who_waits_for_longer_than_the_bound_is_found() -> None:
    history = story()
    history.handle("quick", BEGIN + LATER, topic=BRIEF)
    assert found_in(history) == {"starved": 2}  # for both groups


def test_who_waits_within_the_bound_is_not() -> None:
    history = story()
    history.handle("quick", BEGIN + BOUND - 0.5, topic=BRIEF)
    assert found_in(history) == {}


def test_on_a_busy_machine_the_bound_is_longer() -> None:
    history = story()
    history.record.crowded = 2.0
    history.handle("quick", BEGIN + LATER, topic=BRIEF)
    assert found_in(history) == {}


def test_it_counts_anew_when_another_process_takes_the_partition_over() -> None:
    history = story()
    history.acquire(OTHER, BEGIN + BOUND - 0.5, topic=BRIEF)
    history.handle("quick", BEGIN + LATER, topic=BRIEF, by=OTHER)
    assert found_in(history) == {}


@pytest.mark.parametrize(("settled", "found"), [(END + 1.0, {}), (END - 10.0, {"starved": 2})])
def test_what_was_in_flight_at_a_fault_explains_a_wait_until_it_is_settled(
    settled: float, found: dict[str, int]
) -> None:
    history = story()
    history.publish("long", topic=LABOR, at=BEGIN - 5.0, told=0.0)
    history.fault("kill-server", BEGIN)
    history.handle("long", BEGIN - 1.0, topic=LABOR, outcome="", seconds=None)
    history.handle("long", settled - 6.0, topic=LABOR, attempt=2, seconds=6.0, by=ONE)
    history.handle("quick", END, topic=BRIEF)
    assert found_in(history).get("starved", 0) == found.get("starved", 0)
