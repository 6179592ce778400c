"""@periodic: handlers that run at their times, and the task that publishes their ticks."""

import time
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import OperationalError

from sqlqueue import Delivery, Reject, periodic
from sqlqueue.consumers.background import duties
from sqlqueue.consumers.background.duties import TICKS_INTERVAL, PeriodicTask
from sqlqueue.consumers.declare.periodic import declared
from sqlqueue.consumers.declare.registry import registry
from sqlqueue.core.periodic import Recurrence, tick_id
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log.publish import publish
from sqlqueue.models import Message, PeriodicSchedule, Topic
from sqlqueue.testing import drain
from tests.consuming import Consuming
from tests.log.test_ticks import ids, last_due, row, set_back
from tests.logs import LOG
from tests.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def job(delivery: Delivery) -> None:
    """Do nothing."""


class TestTheDecorator:
    def test_names_and_group_follow_from_the_function(self, consuming: Consuming) -> None:
        periodic("0 3 * * *", timezone="Europe/Berlin")(job)
        (found,) = declared().values()
        assert (found.name, found.group, found.topic) == (f"{__name__}.job", f"{__name__}.job", "periodic")
        assert (found.recurrence, found.missed) == (Recurrence("0 3 * * *", timezone="Europe/Berlin"), "last")
        assert ("periodic", f"{__name__}.job") in {(one.topic, one.group) for one in registry.consumers.values()}

    def test_all_of_it_can_be_named_and_the_consumers_options_are_passed_on(self, consuming: Consuming) -> None:
        options = {"ordering": "partition", "max_attempts": 2, "visibility_timeout": 9, "backoff": 3, "start": "latest"}
        times = {"every": timedelta(minutes=5), "missed": "skip"}
        periodic(**times, name="n", group="g", topic="t", key="k", **options)(job)
        found, consumer = declared()["n"], registry.consumers["g", "t"]
        assert (found.recurrence.every, found.missed, found.topic, found.key) == (300, "skip", "t", "k")
        assert (consumer.options.ordering, consumer.options.max_attempts, consumer.start) == ("partition", 2, "latest")

    def test_the_same_function_may_have_several_schedules(self, consuming: Consuming) -> None:
        periodic("0 3 * * *", name="early")(periodic("0 15 * * *", name="late")(job))
        assert set(declared()) == {"early", "late"}

    def test_a_module_that_is_imported_again_replaces_its_own(self, consuming: Consuming) -> None:
        for cron in ("0 3 * * *", "0 4 * * *"):

            def nightly(delivery: Delivery) -> None: ...

            periodic(cron, name="nightly")(nightly)
        assert declared()["nightly"].recurrence.cron == "0 4 * * *"

    def test_a_name_that_is_taken_is_refused(self, consuming: Consuming) -> None:
        periodic("0 3 * * *", name="n")(job)
        with pytest.raises(ConfigurationError, match=r"schedule 'n' of .* pass another name="):
            periodic("0 4 * * *", name="n", group="other")(drain)

    def test_two_schedules_of_one_function_need_names(self, consuming: Consuming) -> None:
        periodic("0 3 * * *")(job)
        with pytest.raises(ConfigurationError, match="pass another name="):
            periodic("0 15 * * *")(job)

    @pytest.mark.parametrize(
        ("options", "why"),
        [
            ({"every": 0}, "every must be seconds"),
            ({"cron": "0 0 30 2 *"}, "never fires"),
            ({"cron": "* * * * *", "timezone": "Mars"}, "is not known"),
            ({"cron": "* * * * *", "every": 60}, "both are given"),
            ({}, "neither is given"),
            ({"every": 60, "missed": "first"}, "missed must be one of last, all, skip"),
            ({"every": 60, "missed": []}, "missed must be one of"),
            ({"every": 60, "name": "n" * 101}, "100 is the most: pass name="),
            ({"every": 60, "name": "a@b"}, "is not a name"),
            ({"every": 60, "group": "g g"}, "is not a name"),
            ({"every": 60, "topic": "x_dlq" * 30}, "is the most"),
            ({"every": 60, "key": "k" * 256}, "255 is the most"),
            ({"every": 60, "key": 5}, "key must be a string"),
            ({"every": 60, "max_attempts": 0}, "max_attempts must be"),
            ({"every": 60, "retries": 3}, "no option 'retries'"),
            ({"cron": job}, "@periodic needs a time"),
        ],
    )
    def test_what_cannot_be_is_refused(self, consuming: Consuming, options: dict[str, Any], why: str) -> None:
        with pytest.raises(ConfigurationError, match=why):
            periodic(**options)(job)
        assert (declared(), registry.consumers) == ({}, {})

    def test_a_local_function_needs_a_name(self, consuming: Consuming) -> None:
        with pytest.raises(ConfigurationError, match="pass name="):
            periodic("0 3 * * *")(lambda delivery: None)

    def test_a_name_of_the_settings_is_refused(self, consuming: Consuming, settings: Any) -> None:
        settings.SQLQUEUE = {"SCHEDULES": {"n": {"every": 60, "topic": "t"}}}
        periodic("0 3 * * *", name="n")(job)
        with pytest.raises(ConfigurationError, match="rename one"):
            declared()


class TestRunning:
    def test_ticks_reach_the_handlers_of_their_schedules_only(self, consuming: Consuming) -> None:
        seen: dict[str, list[Any]] = {"a": [], "b": []}
        for name, found in seen.items():
            periodic(every=1, name=name)(lambda delivery, found=found: found.append(delivery))
        host = consuming.start()
        wait_until(lambda: all(len(found) >= 2 for found in seen.values()))
        host.stop()
        for name, found in seen.items():
            assert {one.payload["schedule"] for one in found} == {name}
            assert [one.id for one in found] == [f"{name}@{one.payload['tick']}" for one in found]
        assert Topic.objects.get(name="periodic").partitions == 1
        assert len(ids()) == len(set(ids()))

    def test_a_tick_is_punctual(self, consuming: Consuming) -> None:
        periodic(every=1, name="a")(job)
        host = consuming.start()
        wait_until(lambda: len(ids()) >= 3)
        host.stop()
        late = [
            message.created_at - datetime.fromisoformat(message.payload["tick"].replace("Z", "+00:00"))
            for message in Message.objects.all()
        ]
        assert min(late) < timedelta(seconds=0.5)  # it does not wait for the next round of polling

    def test_a_tick_that_fails_is_retried_and_becomes_a_dead_letter(self, consuming: Consuming) -> None:
        attempts: list[int] = []

        def failing(delivery: Delivery) -> None:
            attempts.append(delivery.attempt)
            if delivery.attempt == 2:
                raise Reject("no use")
            raise ValueError

        periodic(every=1e8, name="a", backoff=0, jitter=0)(failing)
        publish("periodic", None, id="a@x", group="a")
        consuming.drain()
        assert attempts == [1, 2]
        assert Message.objects.get(topic="periodic_dlq").failed_group == "a"

    def test_a_process_without_schedules_does_not_ask_for_any(self, consuming: Consuming) -> None:
        consuming.consumer("t", lambda delivery: None)
        subscriber = consuming.start().subscriber
        assert not any(isinstance(task, PeriodicTask) for task in subscriber._background_tasks)

    def test_the_schedules_of_the_settings_tick(self, consuming: Consuming, settings: Any) -> None:
        settings.SQLQUEUE = {
            **settings.SQLQUEUE,
            "SCHEDULES": {"sync": {"every": 1, "topic": "sync", "payload": {"full": True}, "key": "k"}},
        }
        seen: list[Delivery] = []
        consuming.consumer("sync", seen.append)
        host = consuming.start()
        wait_until(lambda: len(seen) >= 1)
        host.stop()
        assert (seen[0].payload, seen[0].key, seen[0].id[:5]) == ({"full": True}, "k", "sync@")


class TestTheTask:
    def test_an_idle_iteration_is_one_statement(self, consuming: Consuming, django_assert_num_queries: Any) -> None:
        periodic(every=1e8, name="a")(job)
        task = PeriodicTask(LOG, declared())
        task.run_once()
        with django_assert_num_queries(1):
            assert task.run_once() is False
        assert task.interval == TICKS_INTERVAL

    def test_it_wakes_when_the_next_tick_is_due(self, consuming: Consuming) -> None:
        periodic(every=1, name="a")(job)
        task = PeriodicTask(LOG, declared())
        task.run_once()
        assert 0 < task.interval <= 1

    def test_it_does_not_hurry_while_the_database_is_away(
        self, consuming: Consuming, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        periodic(every=1, name="s")(job)
        task = PeriodicTask(LOG, declared())
        task.run_once()
        assert task.interval < TICKS_INTERVAL

        def away(alias: str) -> None:
            raise OperationalError("the database is away")

        monkeypatch.setattr(duties, "seconds_to_next", away)
        with pytest.raises(OperationalError):
            task.run_once()
        assert task.interval == TICKS_INTERVAL

    def test_a_new_process_publishes_what_was_missed_and_declares_then(self, consuming: Consuming) -> None:
        periodic(every=60, name="job")(job)
        PeriodicTask(LOG, declared()).run_once()
        due = last_due(60)
        set_back("job", due, attended=False)
        PeriodicTask(LOG, declared()).run_once()
        assert (ids(), row().attended) == ([tick_id("job", due)], True)

    def test_a_change_waits_for_no_heartbeat(self, consuming: Consuming) -> None:
        """Another process is publishing when this one starts."""
        periodic(every=60, name="job")(job)
        task = PeriodicTask(LOG, declared())
        task.run_once()
        PeriodicSchedule.objects.all().delete()
        task._declare_at = time.monotonic()
        task.run_once()
        assert PeriodicSchedule.objects.count() == 1


class TestDraining:
    """How a project tests a periodic job."""

    def test_ahead_publishes_the_ticks_on_the_way(self, consuming: Consuming) -> None:
        seen: list[str] = []
        periodic("0 3 * * *", name="a", timezone="Europe/Berlin")(
            lambda delivery: seen.append(delivery.payload["tick"])
        )
        assert drain() == 0
        assert drain(ahead=timedelta(days=3)) == 3
        assert seen == sorted(seen)
        assert {one[10:] for one in seen} <= {"T02:00:00Z", "T01:00:00Z"}

    def test_in_order_with_what_is_scheduled(self, consuming: Consuming) -> None:
        seen: list[Any] = []
        periodic(every=timedelta(hours=1), name="a")(lambda delivery: seen.append("tick"))
        consuming.consumer("t", lambda delivery: seen.append("message"))
        publish("t", None, delay=timedelta(hours=2))
        drain(ahead=timedelta(hours=3))
        assert seen in (["tick", "tick", "message", "tick"], ["tick", "message", "tick", "tick"])

    def test_only_of_the_handlers_that_are_drained_and_none_that_is_paused(self, consuming: Consuming) -> None:
        for name in ("a", "b", "c"):
            periodic(every=3600, name=name)(lambda delivery: None)
        PeriodicTask(LOG, declared()).run_once()
        PeriodicSchedule.objects.filter(name="b").update(paused=True)
        drain(groups=["a", "b"], ahead=3600)
        assert [one[:2] for one in ids()] == ["a@"]

    def test_too_many_ticks_for_the_timeout_end_it(self, consuming: Consuming) -> None:
        periodic(every=1, name="a")(lambda delivery: None)
        with pytest.raises(TimeoutError, match="still due after"):
            drain(ahead=timedelta(days=3650), timeout=0.5)

    def test_a_tick_runs_once_however_often_the_time_is_drained(self, consuming: Consuming) -> None:
        periodic(every=3600, name="a")(lambda delivery: None)
        assert drain(ahead=3600) == 1
        assert drain(ahead=3600) in (0, 1)  # the hour may have changed between the two
        assert len(ids()) == len(set(ids()))
