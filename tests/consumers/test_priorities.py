"""The shares of priorities: what is urgent goes first, and what is not still moves."""

from collections.abc import Callable
from typing import Any

import pytest

from sqlqueue import NewMessage, publish, publish_many
from sqlqueue.consumers.engine import throttle
from sqlqueue.consumers.engine.throttle import MOST_OWED, PriorityShares, shares
from sqlqueue.core.settings import read
from tests.consuming import QUICK, Consuming

pytestmark = [pytest.mark.once, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def deliver(consuming: Consuming, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """Publish so many messages of each priority, and return the priorities in the order of their deliveries."""
    return lambda counts, **options: delivered(consuming, settings, monkeypatch, counts, options)


def delivered(
    consuming: Consuming, settings: Any, monkeypatch: pytest.MonkeyPatch, counts: list[int], options: dict[str, Any]
) -> list[int]:
    # Enough of each priority is in memory, so that none gets what another leaves.
    monkeypatch.setattr(throttle, "MOST", 16)
    settings.SQLQUEUE = {**QUICK, "TOPICS": {"t": {"partitions": 2, "priorities": len(counts), **options}}}
    order: list[int] = []
    consuming.consumer("t", lambda delivery: order.append(delivery.priority), ordering="none")
    for priority, count in reversed(list(enumerate(counts))):
        for number in range(count):
            publish("t", number, priority=priority)
    consuming.drain(threads=1)
    assert len(order) == sum(counts)
    return order


def test_the_lowest_priority_still_moves(deliver: Callable[..., list[int]]) -> None:
    order = deliver([300, 20, 20])
    before_the_end = order[: order.index(0) + 250]
    for lower in (1, 2):
        assert 3 <= before_the_end.count(lower) <= 20, "a fortieth each while the urgent ones last"
    assert before_the_end.count(0) >= 0.9 * len(before_the_end)


def test_weights_share_out_the_deliveries(deliver: Callable[..., list[int]]) -> None:
    order = deliver([300, 150, 150], priority_weights=[60, 30, 10])
    first = order[:250]
    assert first.count(1) == pytest.approx(0.3 * len(first), abs=10)
    assert first.count(2) == pytest.approx(0.1 * len(first), abs=10)


def test_without_urgent_messages_the_others_get_everything(deliver: Callable[..., list[int]]) -> None:
    order = deliver([0, 30, 30])
    assert order[:20].count(1) >= 18


def test_what_is_urgent_still_goes_first(deliver: Callable[..., list[int]]) -> None:
    order = deliver([10, 10])
    assert order[:10].count(0) >= 9


def test_handlers_on_the_event_loop_do_not_take_the_shares_of_those_in_threads(
    consuming: Consuming, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttle, "MOST", 16)
    options = {"partitions": 2, "priorities": 2}
    settings.SQLQUEUE = {**QUICK, "TOPICS": {"t": options, "u": options}}
    orders: dict[str, list[int]] = {"t": [], "u": []}

    async def on_the_loop(delivery: Any) -> None:
        orders["u"].append(delivery.priority)

    consuming.consumer("t", lambda delivery: orders["t"].append(delivery.priority), ordering="none")
    consuming.consumer("u", on_the_loop, ordering="none")
    for topic in orders:
        for priority, count in ((1, 20), (0, 300)):
            publish_many(topic, [NewMessage(number, priority=priority) for number in range(count)])
    consuming.drain(threads=1)
    for order in orders.values():
        assert len(order) == 320
        assert order[:250].count(1) >= 5, "a twentieth each while the urgent ones last"


def test_shares() -> None:
    assert shares(1, None) == (1.0,)
    assert shares(3, None) == (0.95, 0.025, 0.025)
    assert shares(3, [5, 3, 2]) == (0.5, 0.3, 0.2)
    assert shares(2, [5, 3, 2]) == (0.95, 0.05), "the settings say other priorities than the topic has"


URGENT, LOWER = ("g", "t", 0), ("g", "t", 1)


def test_nothing_is_owed_to_a_priority_of_which_nothing_waits() -> None:
    shared = PriorityShares()
    for taken, owed in (({URGENT: 10}, 5), ({URGENT: 2, LOWER: 1}, 5.5), ({URGENT: 1_000_000}, MOST_OWED)):
        shared.were_dispatched({LOWER: 0.5}, {}, taken)
        assert shared.owed == {LOWER: owed}
    shared.were_dispatched({}, {}, {URGENT: 10})
    shared.were_dispatched({LOWER: 0.5}, {}, {URGENT: 4})
    assert shared.owed == {LOWER: 2}, "nothing has been saved up meanwhile"


def test_a_batch_that_exceeds_its_share_is_made_up_for() -> None:
    shared = PriorityShares()
    shared.were_dispatched({LOWER: 0.25}, {}, {URGENT: 4})
    shared.were_dispatched({LOWER: 0.25}, {LOWER: 20}, {LOWER: 20})
    assert shared.owed == {LOWER: -14}
    shared.were_dispatched({LOWER: 0.25}, {}, {URGENT: 60})
    assert shared.owed == {LOWER: 1}
    shared.were_dispatched({LOWER: 0.25}, {}, {LOWER: 100})
    assert shared.owed == {LOWER: 0}, "what nothing urgent took is not made up for"


@pytest.mark.parametrize(("weights", "urgent"), [(None, 0.95), ([60, 40], 0.6)])
@pytest.mark.parametrize(
    "few", [{"batch": True, "batch_size": 10}, {"concurrency_limit": 2}], ids=["batches", "few at once"]
)
def test_they_keep_to_their_shares_where_few_run_at_once(
    consuming: Consuming, settings: Any, weights: list[int] | None, urgent: float, few: dict[str, Any]
) -> None:
    options = {"partitions": 8, "priorities": 2, **({"priority_weights": weights} if weights else {})}
    settings.SQLQUEUE = {**QUICK, "TOPICS": {"t": options}}
    order: list[int] = []

    def note(given: Any) -> None:
        order.extend(one.priority for one in (given if "batch" in few else [given]))

    consuming.consumer("t", note, ordering="none", **few)
    for priority in (1, 0):
        publish_many("t", [NewMessage(number, priority=priority) for number in range(1_500)])
    consuming.drain(threads=1)
    settled_down = order[200:1_200]  # at first the reader may have met messages of one priority only
    assert settled_down.count(0) == pytest.approx(1_000 * urgent, abs=120)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"priorities": 2, "priority_weights": [1]}, "has 1 weights, and 'priorities' is 2"),
        ({"priority_weights": [1, 2]}, "has 2 weights, and 'priorities' is 1"),
        ({"priorities": 2, "priority_weights": [1, 0]}, "whole number from 1 to 10000, not 0"),
        ({"priorities": 2, "priority_weights": [1, 10_001]}, "whole number from 1 to 10000, not 10001"),
        ({"priorities": 2, "priority_weights": "ab"}, "must be a list"),
        ({"priorities": 2, "priority_weights": {0: 1}}, "must be a list"),
    ],
)
def test_wrong_weights_are_refused(options: dict[str, Any], said: str) -> None:
    (problem, *_) = read({"TOPICS": {"t": options}}).problems
    assert said in problem
