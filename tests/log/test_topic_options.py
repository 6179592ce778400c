"""Settings reach the topics that are there, by runconsumers alone, and what a person has set stays."""

import logging
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from sqlqueue import ConfigurationError, publish
from sqlqueue.log.collect import collect
from sqlqueue.log.topic_options import apply_settings, override
from sqlqueue.log.topics import dead_letters
from sqlqueue.management.commands.runconsumers import SettingsTask
from sqlqueue.models import Message, Receipt, Topic
from tests.consuming import QUICK, Consuming
from tests.logs import LOG
from tests.processes import wait_until
from tests.transactions import OpenTransaction

pytestmark = pytest.mark.django_db(transaction=True)

DAY = 86_400.0


def say(settings: Any, **options: object) -> None:
    """Let the settings say this of topic t."""
    settings.SQLQUEUE = {**QUICK, "TOPICS": {"t": options}, "STRICT_TOPICS": False}


def stored(name: str = "t") -> tuple[float | None, str, tuple[str, ...]]:
    topic = Topic.objects.get(name=name)
    return topic.retention, topic.history, topic.overridden


class TestApplying:
    def test_a_topic_that_is_there_follows(self, settings: Any, caplog: pytest.LogCaptureFixture) -> None:
        publish("t", 1)
        say(settings, retention=timedelta(days=3), history="all")
        with caplog.at_level(logging.INFO, "sqlqueue"):
            assert apply_settings(LOG) == []
        assert stored() == (3 * DAY, "all", ())
        assert [record.message for record in caplog.records] == [
            'event=topic_options_applied topic=t option=retention old="604800 s" new="259200 s"',
            "event=topic_options_applied topic=t option=history old=failures new=all",
        ]

    @pytest.mark.parametrize("retention", [None, 0.0, 1 / 3, 100 * 365 * DAY])
    def test_what_is_as_it_is_to_be_is_not_written(
        self, retention: float | None, settings: Any, django_assert_num_queries: Any
    ) -> None:
        say(settings, retention=retention)
        publish("t", 1)
        with django_assert_num_queries(1):
            assert apply_settings(LOG) == []
        say(settings, retention=5)
        apply_settings(LOG)
        say(settings, retention=retention)
        apply_settings(LOG)
        assert stored() == (retention, "failures", ())
        with django_assert_num_queries(1):
            apply_settings(LOG)

    def test_topics_that_are_not_named_follow_the_general_options(self, settings: Any) -> None:
        publish("other", 1)
        settings.SQLQUEUE = {"RETENTION": None, "HISTORY": "none"}
        apply_settings(LOG)
        assert stored("other") == (None, "none", ())

    def test_dead_letters_are_kept_whatever_the_settings_are(self, settings: Any) -> None:
        dead_letters(LOG, "t")
        settings.SQLQUEUE = {"RETENTION": 5, "TOPICS": {"t": {"retention": 5}}}
        apply_settings(LOG)
        assert stored("t_dlq")[0] is None

    def test_publishing_and_consuming_change_nothing(self, settings: Any, consuming: Consuming) -> None:
        publish("t", 1)
        say(settings, retention=5, history="all")
        consuming.consumer("t", lambda delivery: None)
        publish("t", 2)
        consuming.drain()
        assert stored() == (7 * DAY, "failures", ())

    def test_consumers_that_are_running_follow(self, settings: Any, consuming: Consuming) -> None:
        consuming.consumer("t", lambda delivery: None)
        publish("t", 1)
        host = consuming.start()
        wait_until(lambda: host.subscriber.settled == 1)
        assert not Receipt.objects.exists()
        say(settings, retention=0, history="all")
        apply_settings(LOG)
        wait_until(lambda: host.subscriber.subscriptions[0].history == "all")
        publish("t", 2)
        wait_until(lambda: Receipt.objects.count() == 1)
        host.stop()
        collect(LOG, host.subscriber.reader.log_end.horizon)
        assert not Message.objects.exists()

    @pytest.mark.database("mariadb", "mysql", "postgresql")
    def test_a_row_that_is_locked_is_not_waited_for_and_not_forgotten(self, settings: Any) -> None:
        for topic in ("t", "u"):
            publish(topic, 1)
        settings.SQLQUEUE = {"RETENTION": 5}
        with OpenTransaction() as collection:
            collection.do(lambda: list(Topic.objects.select_for_update().filter(name="t")))
            assert apply_settings(LOG) == ["t"]
            assert (stored("t")[0], stored("u")[0]) == (7 * DAY, 5)
            applier = SettingsTask(LOG)
            applier.start()
            collection.commit()
        wait_until(lambda: stored("t")[0] == 5)
        wait_until(lambda: not applier._thread.is_alive())

    @pytest.mark.database("sqlite")
    def test_a_database_that_is_locked_is_asked_again(self, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        publish("t", 1)
        settings.SQLQUEUE = {"RETENTION": 5}
        with OpenTransaction() as writer:
            writer.do(lambda: Topic.objects.update(paused=True))
            with connection.cursor() as cursor:
                cursor.execute("PRAGMA busy_timeout = 100")
            assert apply_settings(LOG) == ["t"]
        connection.close()
        assert apply_settings(LOG) == []
        assert stored()[0] == 5


class TestOverrides:
    def test_they_stay_until_they_are_taken_back(self, settings: Any) -> None:
        publish("t", 1)
        changed = override(LOG, "t", {"retention": timedelta(days=1)})
        assert [one[1:] for one in changed] == [("retention", 7 * DAY, DAY, True)]
        say(settings, retention=5, history="all")
        apply_settings(LOG)
        assert stored() == (DAY, "all", ("retention",))
        assert override(LOG, "t", {"retention": DAY}) == []
        override(LOG, "t", {"history": "none"})
        assert stored() == (5, "none", ("history",))
        override(LOG, "t", {})
        assert stored() == (5, "all", ())

    def test_one_that_is_as_the_settings_now_is_one_later(self, settings: Any) -> None:
        publish("t", 1)
        assert override(LOG, "t", {"retention": 7 * DAY})
        say(settings, retention=5)
        apply_settings(LOG)
        assert stored()[0] == 7 * DAY

    @pytest.mark.parametrize(
        ("topic", "values", "said"),
        [
            ("t", {"retentoin": 5}, "'retentoin' cannot be overridden. Did you mean 'retention'?"),
            ("t", {"retention": -1}, "retention must be seconds"),
            ("t", {"retention": float("inf")}, "retention must be seconds"),
            ("t", {"history": "some"}, "history must be one of none, failures, all, not 'some'"),
            ("t_dlq", {"retention": 5}, "'t_dlq' holds dead letters, which are kept"),
            ("nowhere", {"retention": 5}, "there is no topic 'nowhere'"),
        ],
    )
    def test_what_cannot_be_is_refused(self, topic: str, values: dict[str, object], said: str) -> None:
        dead_letters(LOG, "t")
        before = list(Topic.objects.order_by("name").values())
        with pytest.raises(ConfigurationError, match=said.replace("?", r"\?")):
            override(LOG, topic, values)
        assert list(Topic.objects.order_by("name").values()) == before
