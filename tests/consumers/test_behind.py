"""A backlog: soon as much is in flight as the handlers' rate allows, and meanwhile it is seldom asked where the log
ends."""

import threading
from collections.abc import Callable

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from sqlqueue import NewMessage, publish, publish_many
from sqlqueue.consumers.engine.loop import BEHIND_LOOK
from sqlqueue.consumers.engine.ownership import WorkingSet
from sqlqueue.consumers.engine.subscriber import Subscriber
from sqlqueue.consumers.engine.throttle import AHEAD, EARLY, MEASURED, MOST, Throttle
from sqlqueue.consumers.handlers.inline import InlinePool
from tests.consumers.test_iterations import Host, assigned_partition, consumer, host
from tests.consumers.test_pace import counted

__all__ = ["host"]

THREADS = 4
LEAST = 2 * THREADS
STEP = 0.001  # seconds


def after(finished: Callable[[int], int], steps: int, step: float = STEP) -> list[int]:
    """Return how many may be in flight after each of so many steps. finished: how many were finished at each, of so
    many that might be in flight."""
    throttle, found = Throttle(THREADS), []
    throttle.finished(0, 100.0)
    for number in range(1, steps + 1):
        throttle.finished(finished(throttle.room(0, LEAST)), 100.0 + number * step)
        found.append(throttle.room(0, LEAST))
    return found


def test_quick_handlers_have_as_much_in_flight_as_they_do_in_a_tenth_of_a_second() -> None:
    assert after(lambda most: 10 * most, 10, 1.1 * MEASURED) == [min(MOST, LEAST * 2**step) for step in range(1, 11)]
    assert after(lambda most: min(most, 10), 600)[-1] == pytest.approx(10 / STEP * AHEAD, rel=0.3)


def test_the_first_ones_are_in_flight_at_once() -> None:
    found = after(lambda most: most, 49)
    assert found[:6] == [2 * LEAST, 4 * LEAST, 8 * LEAST, 16 * LEAST, 32 * LEAST, EARLY]
    assert found[6:] == [EARLY] * 43, "a burst is no rate"


def test_it_takes_more_than_a_few_outcomes_to_let_in_more() -> None:
    assert after(lambda most: most - 1, 1) == [LEAST], "not all that might be in flight has finished"
    assert after(lambda most: 1, 49) == [LEAST] * 7 + [2 * LEAST] * 16 + [4 * LEAST] * 26, "a thousand a second"


def test_what_finishes_in_no_time_says_nothing() -> None:
    throttle = Throttle(THREADS)
    throttle.finished(0, 100.0)
    throttle.finished(MOST, 100.0)
    assert throttle.room(0, LEAST) == LEAST


def test_slow_handlers_have_few_in_flight_at_once_again() -> None:
    throttle = Throttle(THREADS)
    throttle.finished(0, 100.0)
    for number in range(10):
        throttle.finished(throttle.room(0, LEAST), 100.0 + (number + 1) * STEP)
    found = []
    for number in range(1, 15):
        throttle.finished(1, 101.0 + number * 1.1 * MEASURED)
        found.append(throttle.room(0, LEAST))
    assert found[-1] == LEAST
    assert found == sorted(found, reverse=True)


@pytest.fixture
def timed(host: Host, settings: object) -> Callable[..., tuple[Subscriber, Callable[[], list[str]]]]:
    """Return what hosts consumers by a clock of its own, and a function that lets 10 ms pass, turns the loop once, and
    returns the statements."""
    settings.SQLQUEUE |= {"BALANCE_INTERVAL": 60.0, "POLL_INTERVAL": 0.01, "IDLE_POLL_INTERVAL": 0.01}

    def make(*consumers: object, pool: object = InlinePool) -> tuple[Subscriber, Callable[..., list[str]]]:
        subscriber = host(*consumers, pool=pool, threads=THREADS)
        now = subscriber.clock()
        subscriber.clock = lambda: now

        def turn(seconds: float = 0.01) -> list[str]:
            nonlocal now
            now += seconds
            with CaptureQueriesContext(connection) as queries:
                subscriber.run_once()
            return [query["sql"] for query in queries]

        return subscriber, turn

    return make


def looks(statements: list[str]) -> bool:
    """Tell whether it was asked where the log ends: with that goes when the next scheduled message is due."""
    return counted(statements, "sqlqueue_scheduled_message") > 0


def test_while_all_is_behind_it_is_seldom_asked_where_the_log_ends(timed: Callable[..., object]) -> None:
    seen: list[object] = []
    publish_many("t", [NewMessage(number) for number in range(4_000)])
    _, turn = timed(consumer("t", lambda delivery: seen.append(delivery.payload)))
    turns = asked = 0
    while len(seen) < 3_500:
        before = len(seen)
        asked += looks(turn())
        turns += 1
        assert turns < 3 or len(seen) > before, "it goes on all the time"
        publish("other", turns)  # notifies
    publish("t", "meanwhile")
    assert turns > 25
    assert asked == pytest.approx(turns * 0.01 / BEHIND_LOOK, abs=2)
    while "meanwhile" not in seen and turns < 100:
        turn()
        turns += 1
    assert len(seen) == 4_001


def test_what_has_caught_up_does_not_wait_for_what_is_behind(timed: Callable[..., object]) -> None:
    seen: list[object] = []
    publish("other", "first")
    publish_many("t", [NewMessage(number) for number in range(4_000)])
    subscriber, turn = timed(
        consumer("t", lambda delivery: None), consumer("other", lambda delivery: seen.append(delivery.payload))
    )
    subscriber.dispatcher.throttle.target = MOST
    for _ in range(5):
        turn()
    assert seen == ["first"]
    for number in range(5):
        publish("other", number)
        subscriber._notified = False  # by another process, whose notification was lost
        turn()
        assert seen[-1] == number
    assert subscriber.working_set.partitions[0].window.more, "the other is still behind"


def test_a_notification_does_not_keep_it_busy_while_it_has_no_room(
    timed: Callable[..., object], settings: object
) -> None:
    settings.SQLQUEUE |= {"POLL_INTERVAL": 5.0, "IDLE_POLL_INTERVAL": 5.0}
    goes_on = threading.Event()
    publish_many("t", [NewMessage(number, key="one") for number in range(4_000)])
    subscriber, turn = timed(consumer("t", lambda delivery: goes_on.wait(30.0)), pool=None)
    try:
        for _ in range(5):
            turn()
        publish("other", 1)  # notifies
        assert looks(turn(2 * BEHIND_LOOK))
        for _ in range(3):
            publish("other", 1)
            assert 0 < subscriber.run_once() <= BEHIND_LOOK + 1e-6
        assert not looks(turn())
        assert looks(turn(BEHIND_LOOK))
    finally:
        goes_on.set()


@pytest.mark.parametrize(
    ("marks", "behind"),
    [
        ([(True, 5)], True),
        ([(True, 5), (True, 9)], True),
        ([(True, 5), (True, 10)], False),
        ([(True, 11)], False),
        ([(False, 5)], False),
        ([(True, 5), (False, 5)], False),
        ([], False),
    ],
)
def test_behind_is_what_has_more_below_the_horizon(marks: list[tuple[bool, int]], behind: bool) -> None:
    partitions = [assigned_partition(number) for number in range(len(marks))]
    for assigned, (more, cursor) in zip(partitions, marks):
        assigned.window.more, assigned.window.cursor, assigned.window.final = more, cursor, 0
    working_set = WorkingSet()
    working_set.wake_all(partitions, 0)
    assert working_set.behind(10) is behind


def test_nothing_is_behind_beside_what_rests() -> None:
    first, second = (assigned_partition(number) for number in range(2))
    working_set = WorkingSet()
    working_set.wake_all([first, second], 0)
    second.window.more = False
    working_set.rest(0)
    assert working_set.partitions == [first]
    assert not working_set.behind(10)
    working_set.wake_all([first], 0)
    assert working_set.behind(10)
