"""While a process settles often, positions wait for the next claim; nothing else does, and nothing is left behind."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from django.db import connection, reset_queries
from django.test.utils import CaptureQueriesContext

from sqlqueue import Delivery, publish
from sqlqueue.consumers.declare.registry import build
from sqlqueue.consumers.engine.subscriber import Subscriber
from sqlqueue.consumers.engine.throttle import COUNTED, LINGER, OFTEN, Pace
from sqlqueue.consumers.handlers import executor
from sqlqueue.consumers.handlers.inline import InlinePool
from sqlqueue.core.partition.writes import MOST_AHEAD
from sqlqueue.models import DeliveryState, Message, Offset, Receipt
from tests.consuming import Consuming
from tests.processes import wait_until

Publishing = Callable[[int], list[str]]


def test_it_is_measured_over_half_a_second() -> None:
    pace = Pace()
    pace.measure(100.0)
    for settles, seconds, linger in (
        (OFTEN, 2 * COUNTED, LINGER),
        (OFTEN - 1, 2 * COUNTED, 0.0),
        (OFTEN, COUNTED, LINGER),
        (0, COUNTED, 0.0),
    ):
        for _ in range(settles):
            pace.settles += 1
        began = pace._since
        pace.measure(began + COUNTED - 0.01)
        assert pace._since == began
        pace.measure(began + seconds)
        assert pace.linger == linger


@pytest.mark.parametrize(
    ("grown", "settles", "ahead"),
    [(500, 100, 50), (5, 100, 1), (0, 100, 0), (-500, 100, 0), (500, OFTEN - 1, 0), (100_000, 100, MOST_AHEAD)],
)
def test_claims_reach_as_far_as_the_log_grows_but_no_further_than_a_bound(grown: int, settles: int, ahead: int) -> None:
    pace = Pace()
    for now, highest in ((100.0, 0), (101.0, 1_000), (102.0, 1_000 + grown)):
        for _ in range(settles):
            pace.settles += 1
        assert not pace.ahead, "how fast it grows is not known"
        pace.measure(now, highest)
    assert pace.ahead == ahead


@pytest.fixture
def steadily(
    transactional_db: None, settings: object, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Publishing]]:
    """Return what hosts three groups at so many messages a second of simulated time; that publishes some messages, lets
    the groups consume them, and returns the statements."""
    settings.SQLQUEUE = {"PARTITIONS": 4, "WAKE": False, "LEASE_DURATION": 3600, "BALANCE_INTERVAL": 1800}
    started: list[Subscriber] = []

    def host(rate: float, **options: object) -> Publishing:
        made = [build("t", {"group": name, **options}) for name in "abc"]
        consumers = [replace(one, handler=lambda _: None) for one in made]
        subscriber = Subscriber(consumers, background_tasks=False, pool=InlinePool)
        now, numbers = subscriber.clock(), itertools.count()
        subscriber.clock = lambda: now
        monkeypatch.setattr(executor, "now", lambda: now)
        publish("t", "first")
        subscriber.start()
        started.append(subscriber)

        def some(count: int) -> list[str]:
            nonlocal now
            reset_queries()  # the connection keeps a limited number
            with CaptureQueriesContext(connection) as queries:
                for _ in range(count):
                    now += 1 / rate
                    publish("t", 1, key=f"{next(numbers)}")
                    while subscriber.run_once() == 0.0:
                        pass
            return [query["sql"] for query in queries]

        return some

    yield host
    for subscriber in started:
        subscriber.stop(timeout=0.0)
        subscriber.close()


def counted(statements: list[str], *words: str) -> int:
    return sum(all(word in text for word in words) for text in statements)


def test_at_a_high_rate_a_claim_is_written_for_many_messages(steadily: Callable[..., Publishing]) -> None:
    """Of each of 4 partitions at most once in the 50 to 75 ms that a position waits; it was once for each message."""
    some = steadily(500)
    some(700)
    statements = some(200)
    assert counted(statements, "UPDATE", "sqlqueue_offset") <= 16
    probes = counted(statements, "pg_locks") + counted(statements, "SKIP LOCKED")
    assert probes <= 200 / 500 / LINGER + 1


def test_at_a_high_rate_the_rows_of_atomic_handlers_are_deleted_together(steadily: Callable[..., Publishing]) -> None:
    """Of each of 4 partitions, for each of 3 groups, at most once in 50 ms; it was once for each message and group."""
    some = steadily(500, atomic=True)
    for _ in range(7):
        some(100)
    statements = some(200)
    assert counted(statements, "INSERT", "sqlqueue_delivery_state") == 3 * 200
    assert counted(statements, "DELETE", "sqlqueue_delivery_state") <= 3 * 4 * (200 / 500 / LINGER + 1)


def test_an_iteration_that_only_applies_outcomes_counts(
    transactional_db: None, settings: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what waits would end its own wait: fewer settles would look like fewer messages."""
    settings.SQLQUEUE = {"PARTITIONS": 4, "WAKE": False}
    one = replace(build("t", {"group": "a", "atomic": True}), handler=lambda _: None)
    subscriber = Subscriber([one], background_tasks=False, pool=InlinePool)
    publish("t", 1)
    subscriber.start()
    dispatcher = subscriber.dispatcher
    while not dispatcher.in_flight.reports:
        subscriber.run_once()
    monkeypatch.setattr(dispatcher, "advance", lambda *_, **__: False)  # all that there is to write waits
    counts = []
    for _ in range(2):
        before = dispatcher.pace.settles
        subscriber.run_once()
        counts.append(dispatcher.pace.settles - before)
    assert counts == [1, 0]
    monkeypatch.undo()
    subscriber.stop(timeout=0.0)
    subscriber.close()


def test_an_ack_of_an_atomic_handler_does_not_wait_for_its_receipt(
    steadily: Callable[..., Publishing], settings: object
) -> None:
    """Where there is one of each delivery, nothing would write it after a crash: the message is not handled again."""
    settings.SQLQUEUE = {**settings.SQLQUEUE, "TOPICS": {"t": {"history": "all"}}}
    some = steadily(500, atomic=True)
    for _ in range(7):
        some(100)
    assert Receipt.objects.count() == 3 * Message.objects.count()


def test_at_a_low_rate_positions_are_written_at_once(steadily: Callable[..., Publishing]) -> None:
    some = steadily(5)
    some(10)
    for _ in range(5):
        statements = some(1)
        assert counted(statements, "UPDATE", "sqlqueue_offset") == 2
        last = max(Message.objects.values_list("offset", flat=True))
        assert Offset.objects.filter(position=last).count() == 3


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process takes itself for one that settles often."""
    monkeypatch.setattr(Pace, "measure", lambda pace, now, highest: setattr(pace, "linger", LINGER))


def at_the_end() -> bool:
    ends = dict(Message.objects.order_by("offset").values_list("partition", "offset"))
    found = Offset.objects.filter(topic="t").values_list("partition", "position")
    return all(position >= ends.get(partition, 0) for partition, position in found)


def test_a_drain_leaves_no_position_behind(consuming: Consuming, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message is published while the one before is handled, so the end of the log is not asked for each time."""
    monkeypatch.setattr(Pace, "measure", lambda pace, now, highest: setattr(pace, "linger", 20 * LINGER))

    def follow(delivery: Delivery) -> None:
        if delivery.payload:
            publish("t", delivery.payload - 1)

    consuming.consumer("t", follow)
    publish("t", 5)
    consuming.drain()
    assert Message.objects.count() == 6
    assert at_the_end()
    assert not DeliveryState.objects.exists()


def test_a_position_that_waits_is_written_without_a_further_message(busy: None, consuming: Consuming) -> None:
    seen: list[object] = []
    consuming.consumer("t", lambda delivery: seen.append(delivery.payload))
    consuming.start()
    for number in range(3):
        publish("t", number)
        wait_until(lambda: len(seen) == number + 1 and at_the_end())  # noqa: B023  called in this iteration
    assert not DeliveryState.objects.exists()
