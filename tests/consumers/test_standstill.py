"""No stream stands still behind a full window, or behind a key that waits; and a deletion hides no late commit."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
from pytest_django import Settings

from sqlqueue import NewMessage, Reject, Retry, discard, publish, publish_many, testing
from sqlqueue.consumers.engine.subscriber import Subscriber
from sqlqueue.consumers.handlers.inline import InlinePool
from sqlqueue.core.partition import window
from sqlqueue.database.gate import insert_one
from sqlqueue.database.horizon import highest_offset
from sqlqueue.database.insert_sql import LogRow
from sqlqueue.models import BlockedRange
from tests.consumers.test_reading import OpenPublish
from tests.consuming import Consuming, offset_row
from tests.logs import LOG

OVERTAKES = pytest.mark.database("mariadb", "mysql", "postgresql")  # SQLite lets one transaction write at a time
WINDOW = 20

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def one_partition(consuming: Consuming, settings: Settings) -> None:
    topics = {name: {"partitions": 1} for name in ("t", "t_dlq")}
    settings.SQLQUEUE = {"TOPICS": topics, "WAKE": False, "LEASE_DURATION": 3600, "FLUSH_INTERVAL": 0.05}


@contextmanager
def open_publish(write: Callable[[], object] | None = None) -> Iterator[OpenPublish]:
    opened = OpenPublish("late", key="h", write=write)
    try:
        yield opened
    finally:
        opened.commit()


@contextmanager
def turning(consuming: Consuming, group: str = "g") -> Iterator[Callable[[Callable[[], Any]], None]]:
    """A subscriber whose iterations the test runs, until something is so."""
    hosted = Subscriber(consuming.registered(group), pool=InlinePool, background_tasks=False)
    hosted.start()

    def turn_until(reached: Callable[[], Any]) -> None:
        give_up_at = time.monotonic() + 30.0
        while not reached():
            assert time.monotonic() < give_up_at, (
                f"it stands still: {hosted.ownership.assigned_partitions()[0].window.__dict__}"
            )
            hosted.run_once()

    try:
        yield turn_until
    finally:
        hosted.close()


@OVERTAKES
@pytest.mark.parametrize("restarted", [False, True])
def test_a_transaction_beyond_which_a_whole_window_was_handled_stops_nothing_once_it_has_ended(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch, restarted: bool
) -> None:
    monkeypatch.setattr(window, "WINDOW_LIMIT", WINDOW)
    seen: Counter[object] = Counter()
    consuming.consumer("t", lambda delivery: seen.update([delivery.payload]), group="g", batch_size=5)
    with open_publish() as opened, turning(consuming) as turn_until:
        publish_many("t", list(range(5 * WINDOW)))
        last = highest_offset(LOG)
        turn_until(lambda: len(seen) >= WINDOW)
        if not restarted:
            opened.commit()
            turn_until(lambda: offset_row("t", "g").offset_acked >= last)
    if restarted:
        assert len(seen) < 5 * WINDOW
        with turning(consuming) as turn_until:
            turn_until(lambda: offset_row("t", "g").offset_acked >= last)
    assert seen == Counter(["late", *range(5 * WINDOW)])


@pytest.mark.parametrize("held", [pytest.param(True, marks=OVERTAKES), False])
def test_a_key_goes_on_beside_one_behind_which_any_number_waits(consuming: Consuming, held: bool) -> None:
    seen: Counter[str] = Counter()

    @consuming.consumer("t", group="g")
    def handle(delivery) -> None:
        seen[delivery.key] += 1
        if delivery.key == "failing":
            raise Retry(delay=600)

    with open_publish() if held else nullcontext(), turning(consuming) as turn_until:
        messages = [NewMessage(number, key="failing") for number in range(1_500)]
        publish_many("t", messages + [NewMessage(number, key="good") for number in range(50)])
        last = highest_offset(LOG)
        turn_until(lambda: seen["failing"])
        if held:
            turn_until(lambda: seen["good"] == 50)
    with turning(consuming) as turn_until:
        turn_until(lambda: seen["good"] == 50 and offset_row("t", "g").position >= last)
    assert seen["failing"] == 1
    assert BlockedRange.objects.get().messages == 1_499
    publish("t", 50, key="good")
    with turning(consuming) as turn_until:
        turn_until(lambda: seen["good"] == 51)
    assert seen["failing"] == 1


@OVERTAKES
def test_a_dead_letter_that_commits_late_is_delivered_although_another_is_discarded_meanwhile(
    consuming: Consuming,
) -> None:
    seen: list[object] = []

    @consuming.consumer("t", group="dying", max_attempts=1)
    def die(delivery) -> None:
        raise Reject("no")

    @consuming.consumer("t_dlq", group="g")
    def alert(delivery) -> None:
        seen.append(delivery.payload)

    def die_now(payload: object) -> None:
        publish("t", payload)
        testing.drain(groups=["dying"])

    die_now("first")
    with turning(consuming) as turn_until:
        turn_until(lambda: seen == ["first"])
        late = LogRow("t_dlq", 0, 0, "h", "late", '"late"', None, "")
        with open_publish(lambda: insert_one(LOG, late, may_repeat=False)):
            die_now("second")
            turn_until(lambda: seen == ["first", "second"])
            assert discard("t", through=2**62)
        publish("t", "something else")
        turn_until(lambda: seen == ["first", "second", "late"])
