"""Scheduled messages: due later, or inserted by plain SQL; in order per key, and no refused one holds back another."""

import json
import threading
from datetime import datetime, timedelta, timezone

import pytest
from django.db import DatabaseError, OperationalError, connection, connections, transaction
from django.db.models import F

from sqlqueue import publish
from sqlqueue.conf import settings
from sqlqueue.database.log import Log
from sqlqueue.log import schedule
from sqlqueue.log.schedule import move_due
from sqlqueue.models import Message, ScheduledMessage
from sqlqueue.signals import message_refused
from tests.consuming import QUICK, Consuming
from tests.logs import LOG
from tests.processes import wait_until
from tests.refusing import refusing
from tests.servers.session import wait_for_locks
from tests.transactions import OpenTransaction

pytestmark = pytest.mark.django_db(transaction=True)


def insert(**columns: object) -> None:
    """Insert a row as a program does that knows nothing but SQL."""
    names = ", ".join(columns)
    with connection.cursor() as cursor:
        marks = ", ".join(["%s"] * len(columns))
        cursor.execute(f"INSERT INTO sqlqueue_scheduled_message ({names}) VALUES ({marks})", list(columns.values()))


def move_all() -> int:
    count = 0
    while moved := move_due(LOG):
        count += moved
    return count


def log(topic: str = "t") -> list[object]:
    return [message.payload for message in Message.objects.filter(topic=topic).order_by("offset")]


def seconds_until_due() -> float:
    remaining = Log.of(settings.DATABASE).dialect.remaining("due_at")
    return float(Log.of(settings.DATABASE).execute(f"SELECT {remaining} FROM sqlqueue_scheduled_message").fetchone()[0])


class TestWhenItIsDue:
    def test_a_delayed_message_has_no_offset_yet(self) -> None:
        published = publish("t", 1, key="a", delay=timedelta(minutes=5), id="x")
        assert (published.offset, published.id) == (None, "x")
        assert (move_all(), log()) == (0, [])

    @pytest.mark.parametrize(
        ("options", "seconds"),
        [
            ({"delay": 300}, 300),
            ({"delay": timedelta(hours=2)}, 7200),
            ({"delay": 0.5}, 0.5),
            ({"delay": 9 * 365 * 86400}, 9 * 365 * 86400),
        ],
    )
    def test_the_delay_counts_from_now_by_the_databases_clock(self, options: dict, seconds: float) -> None:
        publish("t", 1, **options)
        assert seconds - 60 < seconds_until_due() <= seconds + 0.1

    @pytest.mark.parametrize(
        "zone", [timezone.utc, timezone(timedelta(hours=5, minutes=30)), timezone(-timedelta(hours=9))]
    )
    def test_a_time_is_that_moment_in_any_zone(self, zone: timezone) -> None:
        moment = datetime(2033, 5, 6, 7, 8, 9, 123456, tzinfo=timezone.utc)
        publish("t", 1, at=moment.astimezone(zone))
        assert ScheduledMessage.objects.get().due_at == moment

    def test_a_time_that_is_past_is_now(self) -> None:
        publish("t", 1, at=datetime(2020, 1, 1, tzinfo=timezone.utc))
        assert (move_all(), log()) == (1, [1])

    def test_it_enters_the_log_when_it_is_due(self, consuming: Consuming) -> None:
        seen: list[object] = []
        consuming.consumer("t", lambda delivery: seen.append(delivery.payload))
        publish("t", "soon", delay=0.3)
        publish("t", "later", delay=60)
        consuming.start()
        wait_until(lambda: seen)
        assert seen == ["soon"]
        assert [message.payload for message in ScheduledMessage.objects.all()] == ["later"]

    def test_idle_consumers_sleep_until_it_is_due_and_no_longer(self, consuming: Consuming, settings) -> None:
        settings.SQLQUEUE = {**QUICK, "POLL_INTERVAL": 20.0, "IDLE_POLL_INTERVAL": 20.0}
        seen: list[object] = []
        consuming.consumer("t", lambda delivery: seen.append(delivery.payload))
        publish("t", "first", delay=2)
        publish("t", "much later", delay=3600)
        host = consuming.start()
        wait_until(lambda: seen == ["first"], timeout=10)
        wait_until(lambda: not len(host.subscriber.in_flight))
        publish("t", "earlier than what they wait for", delay=0.5)
        wait_until(lambda: len(seen) == 2, timeout=10)

    def test_it_takes_everything_with_it(self, settings, consuming: Consuming) -> None:
        settings.SQLQUEUE = {"TOPICS": {"t": {"priorities": 3}}}
        options = {"key": "a", "id": "x", "headers": {"h": [1]}, "priority": 2, "group": "only"}
        publish("t", {"p": "✈"}, delay=0, **options)
        publish("t", {"p": "✈"}, **(options | {"id": "y"}))
        move_all()
        scheduled, direct = Message.objects.order_by("-message_id").values().reverse()
        assert (direct["published_at"], direct["due_at"]) == (None, None)
        for column in ("offset", "message_id", "created_at", "published_at", "due_at"):
            scheduled.pop(column), direct.pop(column)
        assert scheduled == direct

    def test_it_is_committed_with_the_caller_or_not_at_all(self) -> None:
        with transaction.atomic():
            publish("t", 1, delay=0)
            transaction.set_rollback(True)
        assert not ScheduledMessage.objects.exists()


class TestPlainSql:
    def test_topic_and_payload_alone_are_a_valid_publish(self, consuming: Consuming) -> None:
        seen: list[object] = []

        @consuming.consumer("t")
        def note(delivery) -> None:
            seen.append((delivery.payload, delivery.key, delivery.headers, delivery.priority, delivery.attempt))

        insert(topic="t", payload='{"from": "SQL", "n": [1, null]}')
        consuming.drain()
        assert seen == [({"from": "SQL", "n": [1, None]}, "", {}, 0, 1)]

    @pytest.mark.parametrize("payload", ["1", "null", '"text"', "[]", "true", "1.50"])
    def test_every_json_value_is_one(self, consuming: Consuming, payload: str) -> None:
        seen: list[object] = []
        consuming.consumer("t", lambda delivery: seen.append(delivery.payload))
        insert(topic="t", payload=payload)
        consuming.drain()
        assert seen == [json.loads(payload)]

    def test_key_id_headers_priority_and_group_may_be_named(self, settings, consuming: Consuming) -> None:
        settings.SQLQUEUE = {"TOPICS": {"t": {"priorities": 2}}}
        insert(
            topic="t", payload="1", partition_key="a", message_id="x", headers='{"h": 1}', priority=1, target_group="g"
        )
        move_all()
        message = Message.objects.get()
        assert (message.partition_key, message.message_id, message.headers) == ("a", "x", {"h": 1})
        assert (message.priority, message.target_group) == (1, "g")

    def test_a_running_consumer_finds_it(self, consuming: Consuming) -> None:
        seen: list[object] = []
        consuming.consumer("t", lambda delivery: seen.append(delivery.payload))
        consuming.start()
        insert(topic="t", payload="1")
        wait_until(lambda: seen)

    @pytest.mark.database("mariadb", "mysql", "postgresql")
    def test_a_late_commit_is_delivered(self, consuming: Consuming) -> None:
        """Chosen by its state, not by its id: a row that commits after its successors were moved is moved then."""
        inserted, commit = threading.Event(), consuming.gate()

        def late() -> None:
            with transaction.atomic():
                insert(topic="t", payload='"late"')
                inserted.set()
                commit.wait()
            connections.close_all()

        thread = threading.Thread(target=late)
        thread.start()
        assert inserted.wait(30)
        insert(topic="t", payload='"early"')
        move_all()
        assert log() == ["early"]
        assert thread.is_alive(), "it waited for the open transaction"
        commit.set()
        thread.join()
        move_all()
        assert log() == ["early", "late"]


class TestOrder:
    def test_messages_of_a_key_enter_in_the_order_in_which_they_are_due(self) -> None:
        due = datetime(2026, 1, 1, tzinfo=timezone.utc)
        for number in (3, 1, 4, 0, 2):
            publish("t", number, key="a", at=due + timedelta(seconds=number))
        move_all()
        assert log() == [0, 1, 2, 3, 4]

    def test_those_due_at_the_same_time_enter_in_the_order_of_their_publishing(self) -> None:
        due = datetime(2026, 1, 1, tzinfo=timezone.utc)
        for number in range(1_200):
            publish("t", number, key="a", at=due)
        assert move_all() == 1_200
        assert log() == list(range(1_200))


class TestRefused:
    BAD = (
        ({"topic": "no name", "payload": "1"}, "not a name"),
        ({"topic": "t", "payload": "1", "priority": 7}, "priority 7"),
        ({"topic": "t", "payload": "1", "headers": "[1]"}, "headers must be a dict"),
    )

    @pytest.mark.parametrize(("columns", "said"), BAD)
    def test_it_keeps_the_reason_and_holds_back_no_other(self, columns: dict, said: str) -> None:
        heard: list[str] = []

        def hear(*, reason: str, **_: object) -> None:
            heard.append(reason)

        message_refused.connect(hear)
        try:
            insert(**columns)
            insert(topic="t", payload='"good"')
            move_all()
        finally:
            message_refused.disconnect(hear)
        assert log() == ["good"]
        refused = ScheduledMessage.objects.get()
        assert refused.refused
        assert said in refused.refusal
        assert len(heard) == 1
        assert said in heard[0]

    def test_it_is_not_tried_again_until_a_person_says_so(self, settings) -> None:
        insert(topic="t", payload="1", priority=1)
        move_all()
        assert move_all() == 0
        ScheduledMessage.objects.update(refused=False, priority=F("priority") - 1)
        assert (move_all(), log()) == (1, [1])

    def test_what_the_database_can_refuse_it_refuses_at_once(self) -> None:
        for columns in ({"topic": "t", "payload": "{not json"}, {"topic": "t"}, {"payload": "1"}):
            with pytest.raises(DatabaseError), transaction.atomic():
                insert(**columns)
        assert not ScheduledMessage.objects.exists()


class TestOneThatCannotBeMoved:
    """Plain SQL may put there what no log keeps, or what no Python reads again: it is refused, and the others go on."""

    @pytest.mark.database("sqlite", "postgresql")
    @pytest.mark.parametrize("depth", [501, 900, 1_500, 5_000])
    def test_json_that_is_nested_too_deep(self, depth: int) -> None:
        if connection.vendor == "sqlite" and depth > 1_500:
            pytest.skip("SQLite itself refuses it")
        self.holds_back_nobody("[" * depth + "]" * depth)

    @pytest.mark.database("sqlite", "mariadb", "postgresql")  # MySQL itself refuses it
    def test_a_number_of_thousands_of_digits(self) -> None:
        self.holds_back_nobody("[" + "1" * 5_000 + "]")

    def holds_back_nobody(self, payload: str) -> None:
        insert(topic="t", payload='"before"')
        insert(topic="t", payload=payload)
        insert(topic="other", payload="1")
        move_all()
        assert (log(), log("other")) == (["before"], [1])
        refused = ScheduledMessage.objects.get()  # as the admin's list reads it
        assert refused.refused
        assert "nested more than" in refused.refusal or "not JSON that Python can read" in refused.refusal
        assert refused.payload

    def test_what_the_database_refuses(self) -> None:
        """Whatever the database says against a row, it says of that row alone."""
        for payload in ("1", "2", "3"):
            insert(topic="t", payload=payload, partition_key="k", message_id=f"m{payload}")
        with refusing("m2"):
            move_all()
        assert log() == [1, 3]
        refused = ScheduledMessage.objects.get()
        assert (refused.message_id, refused.refused) == ("m2", True)
        assert "no m2" in refused.refusal

    @pytest.mark.database("mariadb", "mysql", "postgresql")
    def test_one_whose_id_an_open_transaction_is_publishing_waits_alone_with_its_key(self) -> None:
        for number in range(3):
            publish("t", f"of another key {number}", key="a", delay=0)
        with OpenTransaction() as other:
            other.do(lambda: publish("t", "published first", key="k", id="x"))
            publish("t", "the same id", key="k", id="x", delay=0)
            publish("t", "behind it", key="k", delay=0)
            publish("u", "of another topic", key="k", delay=0)
            wait_for_locks(1)
            try:
                move_all()
            finally:
                connection.close()
            assert log() == [f"of another key {number}" for number in range(3)]
            assert log("u") == ["of another topic"]
            other.commit()
        move_all()
        assert [payload for payload in log() if "another" not in str(payload)] == ["published first", "behind it"]
        assert not ScheduledMessage.objects.exists()

    @pytest.mark.database("mariadb", "mysql", "postgresql")
    def test_what_another_transaction_changes_holds_up_its_key_alone(self) -> None:
        for number in range(3):
            publish("t", number, key="a", delay=0)
            publish("t", f"b{number}", key="b", delay=0)
        mine = ScheduledMessage.objects.filter(partition_key="a").order_by("id")
        with OpenTransaction() as other:
            other.do(lambda: mine.filter(id=mine[0].id).update(priority=0))
            move_all()
            assert log() == ["b0", "b1", "b2"]
            other.commit()
        move_all()
        assert [payload for payload in log() if isinstance(payload, int)] == [0, 1, 2]

    @pytest.mark.database("mariadb", "mysql", "postgresql")
    def test_however_many_of_a_key_wait_the_others_go_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(schedule, "MOVED_AT_ONCE", 3)
        for number in range(10):
            publish("t", number, key="a", delay=0)
        publish("t", "of another key", key="b", delay=0)
        mine = ScheduledMessage.objects.filter(partition_key="a").order_by("id")
        with OpenTransaction() as other:
            other.do(lambda: mine.filter(id=mine[0].id).update(priority=0))
            move_all()
            assert log() == ["of another key"]
            other.commit()
        move_all()
        assert [payload for payload in log() if isinstance(payload, int)] == list(range(10))


@pytest.mark.database("mariadb", "mysql")
def test_a_connection_that_a_failed_rollback_has_closed_is_lost() -> None:
    connection.close()
    assert schedule._lost(LOG, OperationalError(2013, "Lost connection to server during query"))
