"""Scheduled messages by their names: cancelled in time or not, looked at, and known by their times when delivered."""

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from django.db import connection, transaction

from sqlqueue import ConfigurationError, InvalidMessage, cancel, cancel_all, get_scheduled, publish, publish_many
from sqlqueue.core.new_message import NewMessage
from sqlqueue.log import scheduled
from sqlqueue.log.schedule import move_due
from sqlqueue.models import Message, ScheduledMessage
from sqlqueue.testing import drain
from tests.consuming import Consuming
from tests.logs import LOG
from tests.transactions import OpenTransaction

pytestmark = pytest.mark.django_db(transaction=True)

LATER = timedelta(hours=1)


def state(count: int) -> tuple[int, int]:
    assert Message.objects.count() + ScheduledMessage.objects.count() == count
    return Message.objects.count(), ScheduledMessage.objects.count()


@pytest.mark.database("sqlite", "mariadb", "postgresql")  # MySQL makes a float of it
def test_what_plain_sql_has_scheduled_and_python_cannot_read_is_named_and_can_be_corrected() -> None:
    for id in ("replaced", "cancelled"):
        values = ["t", "1" * 5_000, id]
        LOG.execute("INSERT INTO sqlqueue_scheduled_message (topic, payload, message_id) VALUES (%s, %s, %s)", values)
        with pytest.raises(
            InvalidMessage, match=f"'{id}' of topic 't' is scheduled, and Python cannot read it: Exceeds"
        ):
            get_scheduled("t", id=id)
    assert publish("t", 1, id="replaced", delay=LATER, on_conflict="replace").status == "updated"
    assert cancel("t", id="cancelled")
    assert state(1) == (0, 1)


class TestCancel:
    def test_in_time(self) -> None:
        publish("t", 1, key="a", id="x", delay=LATER)
        publish("t", 2, key="b", id="x", delay=LATER)
        publish("t", 3, id="x", delay=LATER)
        publish("u", 4, key="a", id="x", delay=LATER)
        assert cancel("t", id="x", key="a") is True
        assert sorted(ScheduledMessage.objects.values_list("payload", flat=True)) == [2, 3, 4]
        assert cancel("t", id="x", key="a") is False

    def test_frees_the_id(self) -> None:
        publish("t", 1, id="x", delay=0)
        assert cancel("t", id="x")
        assert publish("t", 2, id="x").status == "created"
        assert not cancel("t", id="x")
        move_due(LOG)
        assert [message.payload for message in Message.objects.all()] == [2]

    def test_too_late(self) -> None:
        publish("t", 1, id="x", delay=0)
        move_due(LOG)
        assert cancel("t", id="x") is False
        assert state(1) == (1, 0)

    @pytest.mark.database("mariadb", "mysql", "postgresql")
    def test_of_what_another_transaction_has_published_for_now_comes_too_late(self) -> None:
        publish("t", "so that the topic is there", id="another")
        Message.objects.all().delete()
        with OpenTransaction() as now:
            now.do(lambda: publish("t", "now", id="x"))
            assert publish("t", "later", id="x", delay=LATER).status == "created"
            now.commit()
        assert state(2) == (1, 1)
        assert cancel("t", id="x") is False, "it is delivered"
        assert state(1) == (1, 0)

    def test_what_was_refused(self) -> None:
        publish("t", 1, id="x", delay=0)
        ScheduledMessage.objects.update(refused=True, refusal="for a test")
        assert cancel("t", id="x") is True

    def test_is_part_of_the_callers_transaction(self) -> None:
        publish("t", 1, id="x", delay=LATER)
        with transaction.atomic():
            assert cancel("t", id="x")
            transaction.set_rollback(True)
        assert get_scheduled("t", id="x") is not None

    @pytest.mark.database("mariadb", "mysql", "postgresql")
    def test_that_waits_for_a_move_comes_too_late(self) -> None:
        publish("t", 1, id="x", delay=0)
        with OpenTransaction() as scheduler, OpenTransaction() as mine:
            assert scheduler.do(lambda: move_due(LOG)) == 1
            tried = mine.start(lambda: cancel("t", id="x"))
            with pytest.raises(TimeoutError):
                tried.result(0.2)
            scheduler.commit()
            assert tried.result(60) is False
        assert state(1) == (1, 0)

    @pytest.mark.database("mariadb", "mysql", "postgresql")
    def test_that_waits_for_a_move_that_is_rolled_back_comes_in_time(self) -> None:
        publish("t", 1, id="x", delay=0)
        with OpenTransaction() as scheduler, OpenTransaction() as mine:
            scheduler.do(lambda: move_due(LOG))
            tried = mine.start(lambda: cancel("t", id="x"))
            scheduler.rollback()
            assert tried.result(60) is True
            mine.commit()
        move_due(LOG)
        assert state(0) == (0, 0)

    @pytest.mark.database("mariadb", "mysql", "postgresql")
    @pytest.mark.parametrize("ends", ["commit", "rollback"])
    def test_a_move_leaves_what_is_being_cancelled(self, ends: str) -> None:
        publish("t", 1, id="x", key="a", delay=0)
        publish("t", 2, id="y", key="b", delay=0)
        with OpenTransaction() as other:
            assert other.do(lambda: cancel("t", id="x", key="a")) is True
            assert move_due(LOG) == 1
            getattr(other, ends)()
        move_due(LOG)
        assert state(1 if ends == "commit" else 2)[0] == (1 if ends == "commit" else 2)

    @pytest.mark.database("mariadb", "mysql", "postgresql")
    def test_of_two_one_is_told_that_it_came_in_time(self) -> None:
        publish("t", 1, id="x", delay=LATER)
        with OpenTransaction() as one, OpenTransaction() as other:
            assert one.do(lambda: cancel("t", id="x")) is True
            tried = other.start(lambda: cancel("t", id="x"))
            one.commit()
            assert tried.result(60) is False


class TestCancelAll:
    def test_of_a_key(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(scheduled, "AT_ONCE", 3)
        publish_many("t", [NewMessage(n, key="a", id=f"{n}", delay=LATER) for n in range(7)])
        publish("t", 8, key="a", delay=LATER)
        publish("t", 9, key="b", delay=LATER)
        publish("t", 10, delay=LATER)
        publish("u", 11, key="a", delay=LATER)
        publish("t", 12, key="a")
        assert cancel_all("t", key="a") == 8
        assert cancel_all("t", key="a") == 0
        assert cancel_all("t", key="") == 1
        assert sorted(ScheduledMessage.objects.values_list("payload", flat=True)) == [9, 11]
        assert publish("t", 1, key="a", id="1").status == "created"

    def test_is_all_or_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(scheduled, "AT_ONCE", 2)
        publish_many("t", [NewMessage(n, key="a", delay=LATER) for n in range(5)])
        deleted: list[str] = []

        def fail(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
            if sql.startswith("DELETE"):
                deleted.append(sql)
                if len(deleted) == 3:
                    raise RuntimeError("the process ends here")
            return execute(sql, params, many, context)

        with connection.execute_wrapper(fail), pytest.raises(RuntimeError):
            cancel_all("t", key="a")
        assert state(5) == (0, 5)

    @pytest.mark.database("mariadb", "mysql", "postgresql")
    def test_does_not_count_what_enters_the_log(self) -> None:
        publish("t", 1, key="a", delay=0)
        publish("t", 2, key="a", delay=LATER)
        with OpenTransaction() as scheduler, OpenTransaction() as mine:
            assert scheduler.do(lambda: move_due(LOG)) == 1
            tried = mine.start(lambda: cancel_all("t", key="a"))
            scheduler.commit()
            assert tried.result(60) == 1
            mine.commit()
        assert state(1) == (1, 0)


class TestGet:
    def test_says_what_is_scheduled(self, settings: Any) -> None:
        settings.SQLQUEUE = {"TOPICS": {"t": {"priorities": 2}}}
        at = datetime(2033, 5, 6, 7, 8, 9, 123456, tzinfo=timezone.utc)
        publish("t", {"p": ["✈", 1.5]}, key="a", id="x", at=at, headers={"h": 1}, priority=1, group="g")
        found = get_scheduled("t", id="x", key="a")
        assert found is not None
        assert (found.topic, found.key, found.id, found.payload) == ("t", "a", "x", {"p": ["✈", 1.5]})
        assert (found.headers, found.priority, found.group, found.refusal) == ({"h": 1}, 1, "g", "")
        assert found.due_at == at
        assert abs(found.published_at - datetime.now(timezone.utc)) < timedelta(minutes=1)
        assert found.published_at.utcoffset() == found.due_at.utcoffset() == timedelta(0)
        assert get_scheduled("t", id="x") is get_scheduled("t", id="y", key="a") is None

    def test_knows_the_first_publish_and_the_last_time(self) -> None:
        publish("t", 1, id="x", delay=LATER)
        first = get_scheduled("t", id="x")
        publish("t", 2, id="x", delay=2 * LATER, on_conflict="replace")
        second = get_scheduled("t", id="x")
        assert first is not None
        assert second is not None
        assert second.published_at == first.published_at
        assert second.due_at - first.due_at > timedelta(minutes=59)

    def test_is_none_once_it_is_in_the_log(self) -> None:
        publish("t", 1, id="x", delay=0)
        assert get_scheduled("t", id="x") is not None
        move_due(LOG)
        assert get_scheduled("t", id="x") is None

    def test_says_why_it_was_refused(self) -> None:
        publish("t", 1, id="x", delay=0)
        ScheduledMessage.objects.update(refused=True, refusal="for a test")
        found = get_scheduled("t", id="x")
        assert found is not None
        assert found.refusal == "for a test"


WRONG = [
    ("t", {"id": None}, "id must be a string"),
    ("t", {"id": ""}, "id is empty"),
    ("t", {"id": "x" * 256}, "256 characters"),
    ("t", {"id": "x", "key": 5}, "key must be a string"),
    ("t", {"id": "x", "key": "k" * 256}, "256 characters"),
    ("tt", {"id": "x", "key": "a"}, "Did you mean 't'"),
    ("t_dlq", {"id": "x", "key": "a"}, "dead letters"),
    ("no name", {"id": "x", "key": "a"}, "not a name"),
]


@pytest.mark.parametrize(("topic", "name", "said"), WRONG)
def test_what_publish_refuses_is_refused(topic: str, name: Any, said: str, settings: Any) -> None:
    settings.SQLQUEUE = {"TOPICS": {"t": {}}}
    calls: list[Any] = [lambda: cancel(topic, **name), lambda: get_scheduled(topic, **name)]
    if "key" in name:
        calls.append(lambda: cancel_all(topic, key=name["key"]))
    for call in calls:
        with pytest.raises((InvalidMessage, ConfigurationError), match=said):
            call()


class TestTimesOfADelivery:
    def test_the_publish_and_the_due_time_go_into_the_log(self, consuming: Consuming) -> None:
        seen: dict[str, Any] = {}
        consuming.consumer("t", lambda delivery: seen.setdefault(delivery.id, delivery))
        at = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc)
        publish("t", 1, id="later", at=at)
        published = datetime(2025, 5, 6, 7, 8, 9, 123456, tzinfo=timezone.utc)
        ScheduledMessage.objects.update(created_at=published)
        publish("t", 2, id="now")
        publish("t", 3, id="replaced", delay=LATER)
        ScheduledMessage.objects.filter(message_id="replaced").update(created_at=published)
        publish("t", 4, id="replaced", on_conflict="replace")
        consuming.drain()
        later, now, replaced = (seen[id] for id in ("later", "now", "replaced"))
        assert (later.due_at, later.published_at) == (at, published)
        assert later.created_at - published > timedelta(days=1)
        assert (now.due_at, now.published_at) == (None, now.created_at)
        assert (replaced.due_at, replaced.published_at, replaced.payload) == (None, published, 4)

    def test_of_a_retry_too(self, consuming: Consuming) -> None:
        seen: list[Any] = []

        @consuming.consumer("t", backoff=0.0)
        def fail_once(delivery: Any) -> None:
            seen.append((delivery.due_at, delivery.published_at))
            if delivery.attempt == 1:
                raise ValueError

        at = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc)
        publish("t", 1, at=at)
        consuming.drain()
        assert len(seen) == 2
        assert seen[0] == seen[1]
        assert seen[0][0] == at

    def test_of_a_payload_that_the_server_copies(self) -> None:
        at = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc)
        publish("t", "x" * 100_000, headers={"h": 1}, at=at)
        move_due(LOG)
        message = Message.objects.get()
        assert (message.due_at, message.headers, len(message.payload)) == (at, {"h": 1}, 100_000)
        assert message.published_at is not None
        assert message.published_at <= message.created_at


def test_a_message_is_cancelled_by_a_handler_that_comes_first(consuming: Consuming) -> None:
    seen: list[object] = []

    @consuming.consumer("t")
    def settle(delivery: Any) -> None:
        seen.append(delivery.payload)
        if delivery.payload == "paid":
            seen.append(cancel("t", id="reminder", key=delivery.key))

    publish("t", "remind", key="a", id="reminder", delay=LATER)
    publish("t", "remind", key="b", id="reminder", delay=LATER)
    publish("t", "paid", key="a")
    drain(ahead=2 * LATER)
    assert seen == ["paid", True, "remind"]


def test_an_old_deliverys_ack_never_touches_a_newer_message_of_its_id(consuming: Consuming) -> None:
    seen: list[object] = []

    @consuming.consumer("t")
    def offer_anew(delivery: Any) -> None:
        seen.append(delivery.payload)
        if delivery.payload == "old":
            Message.objects.filter(offset=delivery.offset).delete()  # as collection does once it may
            assert publish("t", "new", key="a", id="x", delay=LATER).status == "created"
            assert publish("t", "newer", key="a", id="x", delay=LATER, on_conflict="replace").status == "updated"

    publish("t", "old", key="a", id="x")
    consuming.drain()
    drain(ahead=2 * LATER)
    assert seen == ["old", "newer"]
    assert [message.payload for message in Message.objects.all()] == ["newer"]


def test_what_was_cancelled_and_scheduled_anew_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    publish("t", 1, id="x", delay=LATER)
    anew: list[str] = []

    def between(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith("DELETE") and not anew:
            anew.append("")
            assert cancel("t", id="x")
            anew[0] = publish("t", 2, id="x", delay=LATER).status
        return execute(sql, params, many, context)

    with connection.execute_wrapper(between):
        assert cancel("t", id="x") is True
    assert anew == ["created"]
    assert not ScheduledMessage.objects.exists()


@pytest.mark.parametrize("scheduled_messages", [0, 3_000])
def test_what_is_not_due_costs_no_statement(scheduled_messages: int, django_assert_num_queries: Any) -> None:
    publish_many("t", [NewMessage(n, delay=LATER) for n in range(scheduled_messages)])
    with django_assert_num_queries(1):
        assert move_due(LOG) == 0
