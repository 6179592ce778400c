"""Ticks of periodic schedules: each published once, and what happens to those that were missed."""

import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from django.db import DatabaseError, connection, connections

from sqlqueue import publish
from sqlqueue.core.periodic import Recurrence, ScheduleDefinition, checked_definition, tick_id
from sqlqueue.database import clock
from sqlqueue.database.gate import PERIODIC, take_duty
from sqlqueue.database.log import Log
from sqlqueue.log import ticks
from sqlqueue.log.declarations import declare
from sqlqueue.log.ticks import publish_due, seconds_to_next
from sqlqueue.models import Message, PeriodicSchedule, Topic
from sqlqueue.signals import tick_refused, ticks_published
from tests.logs import LOG
from tests.transactions import OpenTransaction

pytestmark = pytest.mark.django_db(transaction=True)

UTC = timezone.utc
TIMES = ("attended_until", "ticked_to", "next_tick", "last_tick")


def schedule(name: str = "job", every: float = 60, missed: str = "last", **options: Any) -> ScheduleDefinition:
    values = {"topic": "periodic", "key": "", "group": name, **options}
    return checked_definition(name, Recurrence(every=every), missed, **values)


def declared(*definitions: ScheduleDefinition) -> dict[str, str]:
    """Declare schedules as a process does at its start; return what publish_due wants."""
    assert declare(LOG, {one.name: one for one in definitions})
    return {one.name: one.digest for one in definitions}


def pass_by(seconds: float, *names: str, columns: tuple[str, ...] = TIMES) -> None:
    """Let time pass for the schedules: their rows are as old as if they had been written so long ago."""
    moved = ", ".join(f"{column} = {Log.of('default').dialect.moved(column)}" for column in columns)
    for name in names or PeriodicSchedule.objects.values_list("name", flat=True):
        values = [round(-seconds * 1_000_000)] * len(columns)
        LOG.execute(f"UPDATE sqlqueue_periodic_schedule SET {moved} WHERE name = %s", [*values, name])


def set_back(name: str, due: datetime, attended: bool = True) -> None:
    """Let a schedule's ticks be published to just before a time; attended: by processes that have run since."""
    before = due - timedelta(microseconds=1)
    time, until = LOG.dialect.time, clock.now(LOG) + timedelta(seconds=30 if attended else -3600)
    LOG.execute(
        "UPDATE sqlqueue_periodic_schedule SET ticked_to = %s, next_tick = %s, attended_until = %s WHERE name = %s",
        [time(before), time(due), time(until if attended else before), name],
    )


def last_due(every: float) -> datetime:
    """Return when such a schedule was due last."""
    found = Recurrence(every=every).last(clock.now(LOG) - timedelta(days=30), clock.now(LOG))
    assert found is not None
    return found


def publish_all(digests: dict[str, str]) -> int:
    count = 0
    while True:
        published = publish_due(LOG, digests)
        count += published.published
        if not published.more:
            return count


def ids(topic: str = "periodic") -> list[str]:
    return list(Message.objects.filter(topic=topic).order_by("offset").values_list("message_id", flat=True))


def row(name: str = "job") -> Any:
    (found,) = [one for one in ticks.read_rows(LOG) if one.name == name]
    return found


@pytest.fixture
def announced() -> Iterator[list[dict[str, Any]]]:
    found: list[dict[str, Any]] = []

    def receive(**arguments: Any) -> None:
        found.append(arguments)

    ticks_published.connect(receive)
    tick_refused.connect(receive)
    yield found
    ticks_published.disconnect(receive)
    tick_refused.disconnect(receive)


class TestATick:
    def test_it_is_a_message_for_the_schedules_group(self) -> None:
        digests, due = declared(schedule(group="nightly")), last_due(60)
        set_back("job", due)
        assert publish_all(digests) == 1
        (message,) = Message.objects.all()
        iso = due.strftime("%Y-%m-%dT%H:%M:%SZ")
        assert (message.topic, message.message_id, message.target_group) == ("periodic", f"job@{iso}", "nightly")
        assert message.payload == {"schedule": "job", "tick": iso}

    def test_a_new_schedule_begins_now(self) -> None:
        digests = declared(schedule(every=1e8, missed="all"))
        assert (publish_all(digests), ids()) == (0, [])

    def test_the_row_says_what_was_published(self) -> None:
        digests, due = declared(schedule()), last_due(60)
        set_back("job", due)
        publish_all(digests)
        stored = PeriodicSchedule.objects.get(name="job")
        assert (stored.last_tick, stored.next_tick) == (due, due + timedelta(seconds=60))
        assert abs(stored.last_published_at - clock.now(LOG)) < timedelta(seconds=30)

    def test_it_is_not_published_again_after_retention_has_collected_it(self) -> None:
        digests, due = declared(schedule()), last_due(60)
        set_back("job", due)
        publish_all(digests)
        Message.objects.all().delete()
        pass_by(0.5)
        assert (publish_all(digests), ids()) == (0, [])

    def test_many_schedules_due_together_share_a_statement_to_publish(self, django_assert_max_num_queries: Any) -> None:
        digests = declared(*(schedule(f"job{number}") for number in range(100)))
        due = last_due(60)
        for name in digests:
            set_back(name, due)
        Topic.objects.create(name="periodic", partitions=1, priorities=1, retention=None, history="none")
        with django_assert_max_num_queries(100 + 20):  # one to move each schedule on
            assert publish_all(digests) == 100
        assert sorted(ids()) == sorted(tick_id(name, due) for name in digests)

    def test_a_payload_of_the_settings_is_published_to_its_topic_for_all_groups(self) -> None:
        digests = declared(schedule(topic="sync", group="", key="k", payload='{"full": true}'))
        set_back("job", last_due(60))
        assert publish_all(digests) == 1
        (message,) = Message.objects.all()
        assert (message.topic, message.partition_key, message.target_group) == ("sync", "k", "")
        assert message.payload == {"full": True}

    def test_an_idle_look_is_one_statement(self, django_assert_num_queries: Any) -> None:
        assert seconds_to_next(LOG) is None
        declared(schedule(), schedule("other", 3600))
        with django_assert_num_queries(1):
            seconds = seconds_to_next(LOG)
        assert seconds is not None
        assert 0 < seconds <= 60

    def test_the_topic_has_one_partition_and_is_declared_under_strict_topics(self, settings: Any) -> None:
        settings.SQLQUEUE = {"STRICT_TOPICS": True, "TOPICS": {"orders": {}}}
        digests = declared(schedule())
        set_back("job", last_due(60))
        assert publish_all(digests) == 1
        assert Topic.objects.get().partitions == 1


class TestMissed:
    """Ticks that fell due while no process ran; the schedule is one of every minute, and an hour has passed."""

    def missed(self, policy: str, hours: float = 1) -> tuple[datetime, list[str]]:
        digests, due = declared(schedule(missed=policy)), last_due(60)
        set_back("job", due - timedelta(hours=hours), attended=False)
        publish_all(digests)
        return due, ids()

    def test_the_last_one_is_published(self) -> None:
        due, found = self.missed("last")
        assert found == [tick_id("job", due)]

    def test_all_are_published_in_order(self) -> None:
        due, found = self.missed("all")
        assert found == [tick_id("job", due - timedelta(minutes=ago)) for ago in range(60, -1, -1)]

    def test_none_is_published(self) -> None:
        _, found = self.missed("skip")
        assert found == []
        assert row().next_tick > row().now

    def test_a_short_gap_loses_none_whatever_the_policy_is(self) -> None:
        """A deployment: the process that has ended attends to its ticks for the duration of a lease."""
        digests, due = declared(schedule(missed="skip")), last_due(60)
        set_back("job", due)
        LOG.execute(  # the lease of the process before has run out just now, after the tick
            f"UPDATE sqlqueue_periodic_schedule SET attended_until = {Log.of('default').dialect.moved('next_tick')}",
            [1000],
        )
        assert publish_all(digests) == 1

    def test_all_of_a_long_gap_takes_several_transactions(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ticks, "TICKS_AT_ONCE", 7)
        digests, due = declared(schedule(missed="all")), last_due(60)
        set_back("job", due - timedelta(hours=1), attended=False)
        first = publish_due(LOG, digests)
        assert (first.published, first.more, len(ids())) == (7, True, 7)
        assert publish_all(digests) == 61 - 7
        assert len(set(ids())) == 61

    def test_late_ticks_and_the_last_missed_one_are_published_across_transactions(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Those that fell due before the gap are not lost when they take a transaction of their own."""
        monkeypatch.setattr(ticks, "TICKS_AT_ONCE", 2)
        digests, due = declared(schedule(missed="last")), last_due(60)
        begin = due - timedelta(hours=1)
        set_back("job", begin, attended=False)
        time = LOG.dialect.time(begin + timedelta(minutes=4, seconds=1))
        LOG.execute("UPDATE sqlqueue_periodic_schedule SET attended_until = %s", [time])
        assert publish_all(digests) == 6
        assert ids() == [*(tick_id("job", begin + timedelta(minutes=late)) for late in range(5)), tick_id("job", due)]

    def test_it_is_announced(self, announced: list[dict[str, Any]]) -> None:
        self.missed("skip")
        (told,) = announced
        assert (told["schedule"], told["count"], told["missed"]) == ("job", 0, True)


class TestRefused:
    def test_a_schedule_that_cannot_publish_holds_back_no_other(
        self, settings: Any, announced: list[dict[str, Any]]
    ) -> None:
        settings.SQLQUEUE = {"STRICT_TOPICS": True, "TOPICS": {"sync": {}}}
        digests = declared(schedule("bad", topic="snyc", group=""), schedule("good"))
        due = last_due(60)
        set_back("bad", due)
        set_back("good", due)
        assert publish_all(digests) == 1
        assert ids() == [tick_id("good", due)]
        assert "Did you mean 'sync'?" in str(PeriodicSchedule.objects.get(name="bad").refusal)
        ticks.retry_refused(LOG, digests)
        assert [one["schedule"] for one in announced if "reason" in one] == ["bad"]  # told once

    def test_it_ticks_again_once_the_reason_is_gone(self, settings: Any) -> None:
        settings.SQLQUEUE = {"STRICT_TOPICS": True, "TOPICS": {"sync": {}}}
        digests, due = declared(schedule(topic="orders", group="")), last_due(60)
        set_back("job", due - timedelta(hours=1))
        assert publish_all(digests) == 0
        settings.SQLQUEUE = {"STRICT_TOPICS": True, "TOPICS": {"sync": {}, "orders": {}}}
        assert ticks.retry_refused(LOG, digests) == 1  # since it was refused the ticks are missed ones
        assert ids("orders") == [tick_id("job", due)]
        assert row().refusal is None

    def test_a_refused_schedule_costs_no_statement_while_nothing_else_is_due(self, settings: Any) -> None:
        settings.SQLQUEUE = {"STRICT_TOPICS": True, "TOPICS": {"sync": {}}}
        digests = declared(schedule(topic="orders", group=""))
        set_back("job", last_due(60))
        publish_all(digests)
        assert seconds_to_next(LOG) is None

    def test_a_definition_that_this_process_cannot_read_is_refused(self) -> None:
        digests = declared(schedule(), schedule("other"))
        due = last_due(60)
        set_back("job", due)
        set_back("other", due)
        PeriodicSchedule.objects.filter(name="job").update(definition='{"rrule": "FREQ=DAILY"}')
        assert publish_all(digests) == 1
        assert "cannot be read" in str(PeriodicSchedule.objects.get(name="job").refusal)

    def test_what_the_database_refuses_holds_back_no_other(self, monkeypatch: pytest.MonkeyPatch) -> None:
        original = ticks.publish_many

        def refusing(topic: str, messages: Any, **options: Any) -> Any:
            if topic == "bad":
                raise DatabaseError("no")
            return original(topic, messages, **options)

        monkeypatch.setattr(ticks, "publish_many", refusing)
        digests = declared(schedule("bad", topic="bad"), schedule("good"))
        due = last_due(60)
        set_back("bad", due)
        set_back("good", due)
        assert publish_all(digests) == 1
        assert (ids(), ids("bad")) == ([tick_id("good", due)], [])
        assert row("bad").ticked_to < due


class TestExactlyOnce:
    def test_many_processes_publish_each_tick_once(self) -> None:
        definitions = [schedule(f"job{number}", missed="all") for number in range(5)]
        digests, due = declared(*definitions), last_due(60)
        for name in digests:
            set_back(name, due - timedelta(minutes=19), attended=False)
        barrier, errors = threading.Barrier(4), []

        def publisher() -> None:
            try:
                barrier.wait()
                while seconds_to_next(LOG) is None or (seconds_to_next(LOG) or 0) <= 0:
                    try:
                        publish_due(LOG, digests)
                    except DatabaseError:
                        continue  # contention: the next iteration
            except BaseException as error:
                errors.append(error)
            finally:
                connections.close_all()

        threads = [threading.Thread(target=publisher) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not errors
        expected = {tick_id(n, due - timedelta(minutes=ago)) for n in digests for ago in range(20)}
        assert (len(ids()), set(ids())) == (100, expected)

    @pytest.mark.parametrize("statement", ["UPDATE sqlqueue_periodic_schedule", "INSERT INTO sqlqueue_message"])
    def test_a_process_that_dies_at_any_statement_leaves_the_tick_to_the_next_one(self, statement: str) -> None:
        digests, due = declared(schedule()), last_due(60)
        set_back("job", due)
        connected = connections["default"]
        publish("periodic", 0)  # the topic is there

        def die(execute: Any, sql: str, *arguments: Any) -> Any:
            if statement in sql.replace('"', "").replace("`", ""):
                raise SystemExit
            return execute(sql, *arguments)

        with connected.execute_wrapper(die), pytest.raises(SystemExit):
            publish_due(LOG, digests)
        assert tick_id("job", due) not in ids()
        assert publish_all(digests) == 1
        assert tick_id("job", due) in ids()

    def test_only_the_holder_of_the_duty_publishes(self) -> None:
        if connection.vendor == "sqlite":
            pytest.skip("one writer at a time anyway")
        digests = declared(schedule())
        set_back("job", last_due(60))
        with OpenTransaction() as another:
            assert another.do(lambda: take_duty(LOG, PERIODIC))
            assert publish_due(LOG, digests).published == 0
        assert publish_all(digests) == 1

    @pytest.mark.database("mariadb", "mysql", "postgresql")
    @pytest.mark.session
    def test_an_id_that_an_open_transaction_publishes_holds_back_no_other_schedule(self) -> None:
        digests, due = declared(schedule("held"), schedule("free")), last_due(60)
        set_back("held", due)
        set_back("free", due)
        publish("periodic", 0)  # the topic is there
        mysql = connection.vendor == "mysql"
        brief = "SET SESSION innodb_lock_wait_timeout = 1" if mysql else "SET lock_timeout = '500ms'"
        with connection.cursor() as cursor:
            cursor.execute(brief)
        with OpenTransaction() as another:
            another.do(lambda: publish("periodic", None, id=tick_id("held", due)))
            assert publish_due(LOG, digests).published == 1
            another.rollback()
        assert publish_all(digests) >= 1  # more, if a minute has just begun
        connection.close()  # and its timeout with it
        assert {tick_id("held", due), tick_id("free", due)} <= set(ids())

    def test_a_database_clock_that_goes_back_repeats_nothing(self) -> None:
        digests, due = declared(schedule(missed="all")), last_due(60)
        set_back("job", due)
        publish_all(digests)
        pass_by(-7200)  # all that was written lies two hours ahead of the clock now
        assert publish_all(digests) == 0
        pass_by(7200)
        assert (publish_all(digests), ids()) == (0, [tick_id("job", due)])

    def test_an_id_that_was_published_by_hand_is_not_repeated(self) -> None:
        digests, due = declared(schedule()), last_due(60)
        set_back("job", due)
        publish("periodic", None, id=tick_id("job", due))
        assert publish_all(digests) == 0
        assert (len(ids()), row().ticked_to >= due) == (1, True)


def test_lease_duration_is_how_long_a_process_attends(settings: Any) -> None:
    settings.SQLQUEUE = {"LEASE_DURATION": 1000}
    declared(schedule())
    assert 990 < (row().attended_until - row().now).total_seconds() <= 1000
