"""What a person changes of messages that have not entered the log yet."""

import json
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from django.db import connection, transaction

from sqlqueue import InvalidMessage, publish
from sqlqueue.log import notifier
from sqlqueue.log.schedule import move_due
from sqlqueue.models import Message, ScheduledMessage
from sqlqueue.operations import reschedule
from sqlqueue.operations.edit_scheduled import edit, run_now, withdraw
from sqlqueue.operations.reschedule import Changed
from tests.consuming import QUICK, Consuming
from tests.logs import LOG
from tests.processes import wait_until
from tests.transactions import OpenTransaction

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _topic(consuming: Consuming, settings: Any) -> None:
    settings.SQLQUEUE = {**QUICK, "TOPICS": {"t": {"partitions": 2, "priorities": 3}}}


@pytest.fixture
def notified() -> Iterator[threading.Event]:
    """An event that is set when consumers are notified."""
    event = threading.Event()
    end = notifier.listen(event.set)
    yield event
    end()


def later(payload: Any = 1, **options: Any) -> int:
    """Schedule a message for in an hour; return its number."""
    publish("t", payload, delay=3600, **options)
    return int(ScheduledMessage.objects.order_by("-id")[0].pk)


def refused(topic: str = "t", **columns: Any) -> int:
    """Let plain SQL schedule what the log refuses."""
    made = ScheduledMessage.objects.create(topic=topic, **{"payload": 1, "priority": 99, **columns})
    assert move_due(LOG)
    made.refresh_from_db()
    assert made.refused
    return int(made.pk)


def log() -> list[tuple[str, str, Any]]:
    rows = Message.objects.order_by("offset")
    return list(rows.values_list("topic", "partition_key", "payload"))


def test_what_can_be_changed() -> None:
    number = later({"a": 1}, key="k", headers={"h": 1})
    at = datetime(2031, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
    edit(LOG, number, payload_json='{"b": [1]}', headers={"x": "y"}, priority=0, at=at)
    row = ScheduledMessage.objects.get()
    assert (row.pk, row.payload, row.headers, row.due_at) == (number, {"b": [1]}, {"x": "y"}, at)


def test_what_is_not_named_stays() -> None:
    number = later({"a": 1}, key="k", id="x", headers={"h": 1}, priority=2, group="g")
    before = ScheduledMessage.objects.values().get()
    edit(LOG, number, priority=1)
    assert ScheduledMessage.objects.values().get() == {**before, "priority": 1}
    edit(LOG, number, headers={})
    assert ScheduledMessage.objects.values().get() == {**before, "priority": 1, "headers": None}


@pytest.mark.database("sqlite", "mariadb", "postgresql")  # MySQL keeps such a number as a double, as Python reads it
def test_a_payload_is_stored_unchanged() -> None:
    number = later()
    edit(LOG, number, payload_json='{"n": 12345678901234567890.5}')
    text = LOG.execute(f"SELECT {LOG.dialect.json_text('payload')} FROM sqlqueue_scheduled_message").fetchone()
    assert "12345678901234567890.5" in text[0]


def test_one_that_was_refused_enters_the_log_once_it_is_corrected() -> None:
    number = refused(partition_key="a")
    edit(LOG, number, priority=2)
    assert list(ScheduledMessage.objects.values_list("refused", "refusal")) == [(False, None)]
    assert move_due(LOG) == 1
    assert log() == [("t", "a", 1)]
    assert not ScheduledMessage.objects.exists()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"payload_json": "{"}, "payload is not JSON text"),
        ({"payload_json": "NaN"}, "payload is not JSON text"),
        ({"headers": ["x"]}, "headers must be a dict"),
        ({"priority": 3}, "priority 3 is not one of topic 't'"),
        ({"priority": -1}, "priority -1 is not one of topic 't'"),
        ({"at": datetime(2031, 1, 1)}, "aware datetime"),  # noqa: DTZ001
        ({"at": datetime(2200, 1, 1, tzinfo=timezone.utc)}, "ten years"),
    ],
)
def test_what_could_not_be_published_is_refused(changes: dict[str, Any], reason: str) -> None:
    from sqlqueue import SqlqueueError

    number = later()
    before = ScheduledMessage.objects.values().get()
    with pytest.raises(SqlqueueError, match=reason):
        edit(LOG, number, **changes)
    assert ScheduledMessage.objects.values().get() == before


def test_no_message_is_changed_that_has_entered_the_log() -> None:
    number = later()
    run_now(LOG, [number])
    move_due(LOG)
    with pytest.raises(InvalidMessage, match=f"message {number} is no longer scheduled"):
        edit(LOG, number, payload_json="2")
    assert log() == [("t", "", 1)]


def test_an_edit_waits_for_a_move_and_then_comes_too_late() -> None:
    if connection.vendor == "sqlite":
        pytest.skip("one writer at a time: the two cannot overlap")
    number = later()
    run_now(LOG, [number])
    with OpenTransaction() as other:
        assert other.do(lambda: move_due(LOG)) == 1
        with OpenTransaction() as mine:
            tried = mine.start(lambda: edit(LOG, number, payload_json="2"))
            assert (run_now(LOG, [number]), withdraw(LOG, [number])) == (
                Changed(0, 1),
                Changed(0, 1),
            )
            assert not tried.done()
            other.commit()
            with pytest.raises(InvalidMessage, match="no longer scheduled"):
                tried.result(60)
    assert log() == [("t", "", 1)]


def test_what_is_made_due_is_moved_by_a_consumer_that_sleeps(consuming: Consuming, settings: Any) -> None:
    settings.SQLQUEUE = {**settings.SQLQUEUE, "IDLE_POLL_INTERVAL": 30.0, "WAKE": True}
    seen: list[Any] = []
    consuming.consumer("t", lambda delivery: seen.append(delivery.payload))
    consuming.start()
    publish("t", "first")
    wait_until(lambda: seen == ["first"])
    one, another = later("one"), later("another")
    run_now(LOG, [one])
    wait_until(lambda: seen == ["first", "one"], timeout=20)
    edit(LOG, another, at=datetime.now(timezone.utc) - timedelta(seconds=1))
    wait_until(lambda: seen == ["first", "one", "another"], timeout=20)


def test_consumers_are_notified_once_it_is_committed(notified: threading.Event) -> None:
    for change in (
        lambda: run_now(LOG, [later()]),
        lambda: edit(LOG, later(), at=datetime.now(timezone.utc)),
    ):
        with transaction.atomic():
            change()
            assert not notified.is_set()
        assert notified.is_set()
        notified.clear()


def test_run_now_tries_refused_ones_again() -> None:
    number = refused(topic="no topic", priority=0)
    ScheduledMessage.objects.update(topic="t")
    assert run_now(LOG, [number, number + 1]) == Changed(1, 1)
    assert move_due(LOG) == 1
    assert log() == [("t", "", 1)]


def test_what_is_withdrawn_never_enters_the_log() -> None:
    numbers = [later(number) for number in range(3)]
    assert withdraw(LOG, numbers[:2]) == Changed(2, 0)
    assert withdraw(LOG, numbers[:2]) == Changed(0, 2)
    run_now(LOG, numbers)
    move_due(LOG)
    assert log() == [("t", "", 2)]


def test_more_than_one_transaction_takes_are_made_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reschedule, "AT_ONCE", 2)
    numbers = [later(number) for number in range(5)]
    assert run_now(LOG, numbers) == Changed(5, 0)
    assert withdraw(LOG, numbers) == Changed(5, 0)
    assert not ScheduledMessage.objects.exists()


@pytest.mark.parametrize("name", ["sqlqueue-batch", "sqlqueue-reply", "Sqlqueue-Version", "sqlqueue-new"])
def test_headers_that_are_the_queues_own_are_refused_as_by_publish(name: str) -> None:
    number = later(headers={"a": 1})
    with pytest.raises(InvalidMessage, match="which is for the queue's own"):
        edit(LOG, number, headers={name: "x"})
    assert ScheduledMessage.objects.get().headers == {"a": 1}


def test_the_queues_own_headers_stay_whatever_a_person_gives(settings: Any) -> None:
    settings.SQLQUEUE = {**settings.SQLQUEUE, "TOPICS": {"t": {"payload_version": 3}}}
    number = later(headers={"a": 1})
    own = {"sqlqueue-version": 3}
    edit(LOG, number, headers={"b": 2})
    assert ScheduledMessage.objects.get().headers == {"b": 2, **own}
    edit(LOG, number, headers={"c": 3, **own})
    assert ScheduledMessage.objects.get().headers == {"c": 3, **own}
    edit(LOG, number, headers=None)
    assert ScheduledMessage.objects.get().headers == own
    with pytest.raises(InvalidMessage, match="which is for the queue's own"):
        edit(LOG, number, headers={"sqlqueue-version": 4})


TASK = {"task": "shop.tasks.run", "args": [], "kwargs": {}}


@pytest.mark.parametrize(
    "changes",
    [
        {"payload_json": json.dumps(TASK)},
        {"payload_json": "{}"},
        {"headers": {"a": 1}},
    ],
)
def test_no_edit_makes_another_task_of_a_message(changes: dict[str, Any], settings: Any) -> None:
    settings.SQLQUEUE = {**settings.SQLQUEUE, "TOPICS": {"t": {}, "tasks.default": {}}}
    number = later()
    ScheduledMessage.objects.update(topic="tasks.default")
    with pytest.raises(InvalidMessage, match="only their app publishes"):
        edit(LOG, number, **changes)
    edit(LOG, number, at=datetime.now(timezone.utc))
    assert run_now(LOG, [number]).changed == 1
