"""What operators see and do with several databases: each figure with its database, and nothing on one of them by
mistake."""

import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.db import connections
from django.test import Client, override_settings
from django.urls import clear_url_caches, include, path

from sqlqueue import ConfigurationError, NewMessage, Reject, consumer, discard, publish, publish_many, replay
from sqlqueue.consumers.declare.registry import registry
from sqlqueue.core.keys import database_of
from sqlqueue.database.log import Log
from sqlqueue.management.base import UNREACHABLE
from sqlqueue.models import Message, Topic
from sqlqueue.monitoring import responses
from sqlqueue.operations.reschedule import republish
from sqlqueue.stats.cached import recent_survey
from sqlqueue.stats.survey import Survey
from sqlqueue.testing import drain, published
from tests.databases.aliases import BOTH, A, B, spread

NAMES = {database: [f"key-of-{database}-{number}" for number in range(60)] for database in BOTH}
KEYS = {database: [name for name in names if database_of(name, BOTH) == database] for database, names in NAMES.items()}
urlpatterns: list[Any] = []


@pytest.fixture(autouse=True)
def handler(databases: dict[str, Any]) -> Any:
    """Register a handler that rejects what says so, for this test alone."""
    registry.discover()
    present = registry.consumers, registry.duplicates, registry.schedules
    registry.consumers, registry.duplicates, registry.schedules = {}, [], {}
    seen: list[Any] = []

    @consumer("t", group="g", max_attempts=1)
    def handle(delivery: Any) -> None:
        seen.append(delivery.payload)
        if delivery.payload == "bad":
            raise Reject("as it says")

    recent_survey.forget()
    yield seen
    registry.consumers, registry.duplicates, registry.schedules = present
    recent_survey.forget()


def command(*words: str) -> str:
    out = StringIO()
    call_command(*words, stdout=out, stderr=StringIO())
    return out.getvalue()


def publish_both(payload: Any = "bad") -> None:
    publish_many("t", [NewMessage(payload, key=KEYS[database][0]) for database in BOTH])


def test_a_drain_in_a_test_is_of_all_databases(handler: list[Any]) -> None:
    @consumer("u", group="g")
    def pass_on(delivery: Any) -> None:
        publish("t", delivery.payload, key=KEYS[B if delivery.key == KEYS[A][0] else A][0])

    publish_many("u", [NewMessage(database, key=KEYS[database][0]) for database in BOTH])
    assert drain() == 4
    assert sorted(handler) == [A, B]
    assert len(published("t")) == 2


def test_dead_letters_stay_on_their_database_and_are_replayed_there(handler: list[Any]) -> None:
    publish_both()
    drain()
    dead = {alias: Message.objects.using(alias).dead_letters().get() for alias in (A, B)}
    with pytest.raises(ConfigurationError, match="say which with database="):
        replay("t", offsets=[dead[B].offset])
    assert replay("t", offsets=[dead[B].offset], database=B) == 1
    again = Message.objects.using(B).filter(topic="t").latest("offset")
    assert (again.message_id, again.partition_key) == (f"replay:{B}:{dead[B].offset}", KEYS[B][0])
    assert Message.objects.using(A).dead_letters().count() == 1
    drain()
    assert len(handler) == 3
    assert discard("t") == 2
    with pytest.raises(ConfigurationError, match="say which with database="):
        republish("t", "g", [again.offset])
    assert republish("t", "g", [again.offset], database=B) == 1


def test_commands_name_the_database(handler: list[Any]) -> None:
    publish_both()
    drain()
    for shown in (command("queuestatus"), command("queuedlq", "list")):
        assert shown.index(f"database {A}\n") < shown.index(f"database {B}\n")
        assert shown.count(" t ") + shown.count("t  ") >= 2
    assert f"database {A}" not in command("queuestatus", "--database", B)


def test_commands_ask_which_database_where_that_matters(
    handler: list[Any], databases: dict[str, Any], settings: Any
) -> None:
    publish_both("good")
    for words in (["queuetail", "t"], ["queuegroup", "remove", "t", "g"], ["queuestatus", "--json"]):
        with pytest.raises(CommandError, match=f"which.*--database: {A}, {B}"):
            command(*words)
    with pytest.raises(
        CommandError, match=r"neither DATABASE nor a topic's 'databases' name it\. (Did you mean|Known are)"
    ):
        command("queuestatus", "--database", "c")
    settings.SQLQUEUE = databases | {"TOPICS": databases["TOPICS"] | {"alone": {"databases": [B]}}}
    publish("alone", 1)
    assert "key=—" in command("queuetail", "alone", "--from", "earliest", "--no-follow")


@pytest.mark.parametrize("words", [("queuepublish", "only-b", "1"), ("queuemessage", "only-b", "--id=x")])
def test_a_command_says_which_database_does_not_answer(
    words: tuple[str, ...], databases: dict[str, Any], settings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings.SQLQUEUE = {**databases, "TOPICS": {"only-b": {"databases": [B]}}}
    connections[B].close()
    for name, value in {"HOST": "127.0.0.1", "PORT": "1", "NAME": str(tmp_path / "none" / "none")}.items():
        monkeypatch.setitem(connections[B].settings_dict, name, value)
    with pytest.raises(CommandError, match=f"the database '{B}' does not answer") as refused:
        command(*words)
    assert refused.value.returncode == UNREACHABLE


def test_a_topic_is_paused_on_all_its_databases(handler: list[Any]) -> None:
    publish_both("good")
    command("queuepause", "t")
    assert all(Topic.objects.using(alias).get(name="t").paused for alias in (A, B))
    assert drain() == 0
    command("queueresume", "t", "--database", B)
    assert drain() == 1


def test_a_topic_is_created_with_its_databases_and_dropped_on_each(databases: dict[str, Any], settings: Any) -> None:
    settings.SQLQUEUE = databases | spread("new")
    command("queuetopic", "create", "new", "--partitions", "3")
    publish_many("new", [NewMessage(1, key=KEYS[database][0]) for database in BOTH])
    assert [Topic.objects.using(alias).get(name="new").partitions for alias in (A, B)] == [3, 3]
    assert Topic.objects.using(B).get(name="new").databases == f"{A},{B}"
    for database in (B, A):
        command("queuetopic", "drop", "new", "--database", database, "--no-input", "--unsettled")
    assert not Topic.objects.using(A).filter(name="new").exists()


def test_endpoints_and_gauges_tell_the_databases_apart(handler: list[Any]) -> None:
    from prometheus_client import CollectorRegistry, generate_latest

    from sqlqueue.monitoring.gauges import StatsCollector

    publish_both()
    drain()
    assert responses.ready(detailed=True).body == {"ok": True, "databases": {A: {"ok": True}, B: {"ok": True}}}
    shown = responses.status().body["databases"]
    assert [shown[database]["groups"][0]["dead_letters"] for database in BOTH] == [1, 1]
    assert responses.health(detailed=False).body.keys() == {"ok"}
    metrics = CollectorRegistry()
    metrics.register(StatsCollector())
    text = generate_latest(metrics).decode()
    for database in BOTH:
        assert f'sqlqueue_dead_letters{{database="{database}",group="g",topic="t"}} 1.0' in text
        assert f'sqlqueue_database_up{{database="{database}"}} 1.0' in text


def test_a_database_that_is_misconfigured_hides_no_gauges_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    from sqlqueue.monitoring import gauges

    publish_both()
    read = gauges.recent_survey.get

    def get(log: Log) -> Survey:
        if log.alias == B:
            raise ConfigurationError("the horizon cannot be probed")
        return read(log)

    monkeypatch.setattr(gauges.recent_survey, "get", get)
    found = {
        (sample.name, sample.labels["database"]): sample.value
        for family in gauges.StatsCollector().collect()
        for sample in family.samples
    }
    assert (found["sqlqueue_database_up", A], found["sqlqueue_database_up", B]) == (1, 0)
    assert found["sqlqueue_highest_offset", A] > 0
    assert ("sqlqueue_highest_offset", B) not in found


def test_the_site_is_ready_without_asking_a_second_database_which_may_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(responses, "_unready", lambda log: asked.append(log.alias) or "")
    assert responses.ready(detailed=False).status == 200
    assert list(map(str, asked)) == [A]


def test_each_database_has_pages_of_its_own(handler: list[Any]) -> None:
    from sqlqueue.admin import database_site

    publish("t", {"on": "a"}, key=KEYS[A][0])
    number = publish("t", {"on": "b"}, key=KEYS[B][0]).offset
    urlpatterns[:] = [path("", include("tests.urls")), path("databases/b/", database_site(B).urls)]
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("ann"))
    with override_settings(ROOT_URLCONF=__name__):
        listed = client.get("/databases/b/sqlqueue/message/").content.decode()
        assert KEYS[B][0] in listed
        assert KEYS[A][0] not in listed
        assert f"Database {B}" in listed
        page = client.get(f"/databases/b/sqlqueue/message/{number}/change/", follow=True).content.decode()
        assert KEYS[B][0] in page
        assert client.get("/databases/b/sqlqueue/overview/").status_code == 200
        publish("t", "bad", key=KEYS[B][0])
        drain()
        overview = client.get("/databases/b/sqlqueue/overview/").content.decode()
        assert 'href="/databases/b/sqlqueue/deadletter/?topic=t' in overview
    with pytest.raises(ConfigurationError, match="there is no log on 'c'"):
        database_site("c")


def test_every_page_names_its_database_and_leads_to_the_others(handler: list[Any], settings: Any) -> None:
    from sqlqueue.admin import database_site

    publish_both()
    drain()
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("ann"))
    number = Message.objects.using(A).filter(topic="t").get().pk
    places = ["", "overview/", "message/", "consumergroup/", "scheduledmessage/", "receipt/", "subscriberheartbeat/"]
    places += [f"message/{number}/change/", "deadletter/", "topic/t/history/"]
    urlpatterns[:] = [path("", include("tests.urls")), path("databases/b/", database_site(B).urls)]

    def lines(start: str, page: str) -> list[str]:
        html = client.get(f"{start}sqlqueue/{page}", follow=True).content.decode()
        return re.findall('<nav class="sqlqueue-databases".*?</nav>', html)

    with override_settings(ROOT_URLCONF=__name__):
        for page in places:
            [line] = lines("/admin/", page)
            assert f"<strong>Database {A}</strong>" in line, page
            assert re.search(f'href="/databases/b/[^"]*">{B}</a>', line), page
        [line] = lines("/databases/b/", "consumergroup/")
        assert f"<strong>Database {B}</strong>" in line
        assert f'href="/admin/sqlqueue/consumergroup/">{A}</a>' in line
        urlpatterns[:] = [path("", include("tests.urls"))]
        clear_url_caches()
        [line] = lines("/admin/", "overview/")
        assert line.endswith(f"</strong> · {B}</nav>")
        settings.SQLQUEUE = {name: value for name, value in settings.SQLQUEUE.items() if name != "TOPICS"}
        assert lines("/admin/", "overview/") == []


def test_what_differs_from_the_settings_is_reported(databases: dict[str, Any], settings: Any) -> None:
    from sqlqueue.checks.configuration import check_placement

    publish_both()
    settings.SQLQUEUE = databases | {"TOPICS": {"t": {"databases": [A]}, "u": {"databases": [B]}}}
    (found,) = check_placement(databases=[A, B])
    assert found.id == "sqlqueue.E029"
    assert f"topic 't' was first used on {A}, {B}, and the settings say {A}: publishing is refused" in found.msg
