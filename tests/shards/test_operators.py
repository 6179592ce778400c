"""What operators see and do with several shards: each figure with its shard, and nothing on one of them by mistake."""

import re
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.test import Client, override_settings
from django.urls import clear_url_caches, include, path

from sqlqueue import ConfigurationError, NewMessage, Reject, consumer, discard, publish, publish_many, replay
from sqlqueue.consumers.registry import registry
from sqlqueue.core.shards import shard_of
from sqlqueue.log.topics import forget_topics
from sqlqueue.models import Message, Topic
from sqlqueue.monitoring import responses
from sqlqueue.operations.republish import republish
from sqlqueue.stats.cached import recent_survey
from sqlqueue.testing import drain, published
from tests.shards.aliases import A, B

NAMES = {shard: [f"key-of-{shard}-{number}" for number in range(60)] for shard in "ab"}
KEYS = {shard: [name for name in names if shard_of(name, "ab") == shard] for shard, names in NAMES.items()}
urlpatterns: list[Any] = []


@pytest.fixture(autouse=True)
def handler(shards: dict[str, Any]) -> Any:
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
    publish_many("t", [NewMessage(payload, key=KEYS[shard][0]) for shard in "ab"])


def test_a_drain_in_a_test_is_of_all_shards(handler: list[Any]) -> None:
    @consumer("first", group="g")
    def pass_on(delivery: Any) -> None:
        publish("t", delivery.payload, key=KEYS["b" if delivery.key == KEYS["a"][0] else "a"][0])

    publish_many("first", [NewMessage(shard, key=KEYS[shard][0]) for shard in "ab"])
    assert drain() == 4
    assert sorted(handler) == ["a", "b"]
    assert len(published("t")) == 2


def test_dead_letters_stay_on_their_shard_and_are_replayed_there(handler: list[Any]) -> None:
    publish_both()
    drain()
    dead = {alias: Message.objects.using(alias).dead_letters().get() for alias in (A, B)}
    with pytest.raises(ConfigurationError, match="say which with shard="):
        replay("t", offsets=[dead[B].offset])
    assert replay("t", offsets=[dead[B].offset], shard="b") == 1
    again = Message.objects.using(B).filter(topic="t").latest("offset")
    assert (again.message_id, again.partition_key) == (f"replay:b:{dead[B].offset}", KEYS["b"][0])
    assert Message.objects.using(A).dead_letters().count() == 1
    drain()
    assert len(handler) == 3
    assert discard("t") == 2
    with pytest.raises(ConfigurationError, match="say which with shard="):
        republish("t", "g", [again.offset])
    assert republish("t", "g", [again.offset], shard="b") == 1


def test_commands_name_the_shard(handler: list[Any]) -> None:
    publish_both()
    drain()
    for shown in (command("queuestatus"), command("queuedlq", "list"), command("queuegroup", "list")):
        assert shown.index("shard a\n") < shown.index("shard b\n")
        assert shown.count(" t ") + shown.count("t  ") >= 2
    assert "shard a" not in command("queuestatus", "--shard", "b")


def test_commands_ask_which_shard_where_that_matters(handler: list[Any], shards: dict[str, Any], settings: Any) -> None:
    publish_both("good")
    for words in (["queuetail", "t"], ["queuegroup", "remove", "t", "g"], ["queuestatus", "--json"]):
        with pytest.raises(CommandError, match=r"which.*--shard: a, b"):
            command(*words)
    with pytest.raises(CommandError, match=r"there is no such shard\. (Did you mean|Known are)"):
        command("queuestatus", "--shard", "c")
    settings.SQLQUEUE = shards | {"TOPICS": {"alone": {"shards": ["b"]}}, "STRICT_TOPICS": False}
    publish("alone", 1)
    assert "key=—" in command("queuetail", "alone", "--from", "earliest", "--no-follow")


def test_a_topic_is_paused_on_all_its_shards(handler: list[Any]) -> None:
    publish_both("good")
    command("queuepause", "t")
    assert all(Topic.objects.using(alias).get(name="t").paused for alias in (A, B))
    assert drain() == 0
    command("queueresume", "t", "--shard", "b")
    assert drain() == 1


def test_a_topic_is_created_with_its_shards_and_dropped_on_databases_last(handler: list[Any]) -> None:
    command("queuetopic", "create", "new", "--partitions", "3")
    publish_many("new", [NewMessage(1, key=KEYS[shard][0]) for shard in "ab"])
    assert [Topic.objects.using(alias).get(name="new").partitions for alias in (A, B)] == [3, 3]
    assert Topic.objects.using(B).get(name="new").shards == "a,b"
    with pytest.raises(CommandError, match="drop it there first, with --shard b"):
        command("queuetopic", "drop", "new", "--shard", "a", "--no-input", "--unsettled")
    for shard in "ba":
        command("queuetopic", "drop", "new", "--shard", shard, "--no-input", "--unsettled")
    assert not Topic.objects.using(A).filter(name="new").exists()


def test_endpoints_and_gauges_tell_the_shards_apart(handler: list[Any]) -> None:
    from prometheus_client import CollectorRegistry, generate_latest

    from sqlqueue.monitoring.gauges import StatsCollector

    publish_both()
    drain()
    assert responses.ready(detailed=True).body == {"ok": True, "shards": {"a": {"ok": True}, "b": {"ok": True}}}
    shown = responses.status().body["shards"]
    assert [shown[shard]["groups"][0]["dead_letters"] for shard in "ab"] == [1, 1]
    assert responses.health(detailed=False).body.keys() == {"ok"}
    metrics = CollectorRegistry()
    metrics.register(StatsCollector())
    text = generate_latest(metrics).decode()
    for shard in "ab":
        assert f'sqlqueue_dead_letters{{group="g",shard="{shard}",topic="t"}} 1.0' in text
        assert f'sqlqueue_database_up{{shard="{shard}"}} 1.0' in text


def test_the_site_is_ready_without_asking_a_second_shard_which_may_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(responses, "_unready", lambda alias: asked.append(alias) or "")
    assert responses.ready(detailed=False).status == 200
    assert asked == [A]


def test_each_shard_has_pages_of_its_own(handler: list[Any]) -> None:
    from sqlqueue.admin import shard_site

    publish("t", {"on": "a"}, key=KEYS["a"][0])
    number = publish("t", {"on": "b"}, key=KEYS["b"][0]).offset
    urlpatterns[:] = [path("", include("tests.urls")), path("shards/b/", shard_site("b").urls)]
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("ann"))
    with override_settings(ROOT_URLCONF=__name__):
        listed = client.get("/shards/b/sqlqueue/message/").content.decode()
        assert KEYS["b"][0] in listed
        assert KEYS["a"][0] not in listed
        assert "Shard b" in listed
        page = client.get(f"/shards/b/sqlqueue/message/{number}/change/", follow=True).content.decode()
        assert KEYS["b"][0] in page
        assert client.get("/shards/b/sqlqueue/overview/").status_code == 200
        publish("t", "bad", key=KEYS["b"][0])
        drain()
        groups = client.get("/shards/b/sqlqueue/consumergroup/").content.decode()
        assert 'href="/shards/b/sqlqueue/message/dead-letters/?topic=t' in groups
    with pytest.raises(ConfigurationError, match="SHARDS has no shard 'c'"):
        shard_site("c")


def test_every_page_names_its_shard_and_leads_to_the_others(handler: list[Any], settings: Any) -> None:
    from sqlqueue.admin import shard_site

    publish_both()
    drain()
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("ann"))
    number = Message.objects.using(A).filter(topic="t").get().pk
    places = ["", "overview/", "message/", "consumergroup/", "scheduledmessage/", "receipt/", "subscriberheartbeat/"]
    places += [f"message/{number}/change/", "message/dead-letters/", "topic/t/history/"]
    urlpatterns[:] = [path("", include("tests.urls")), path("shards/b/", shard_site("b").urls)]

    def lines(start: str, page: str) -> list[str]:
        html = client.get(f"{start}sqlqueue/{page}", follow=True).content.decode()
        return re.findall('<nav class="sqlqueue-shards".*?</nav>', html)

    with override_settings(ROOT_URLCONF=__name__):
        for page in places:
            [line] = lines("/admin/", page)
            assert "<strong>Shard a</strong>" in line, page
            assert re.search('href="/shards/b/[^"]*">b</a>', line), page
        [line] = lines("/shards/b/", "consumergroup/")
        assert "<strong>Shard b</strong>" in line
        assert 'href="/admin/sqlqueue/consumergroup/">a</a>' in line
        urlpatterns[:] = [path("", include("tests.urls"))]
        clear_url_caches()
        [line] = lines("/admin/", "overview/")
        assert line.endswith("</strong> · b</nav>")
        settings.SQLQUEUE = {name: value for name, value in settings.SQLQUEUE.items() if name != "SHARDS"}
        assert lines("/admin/", "overview/") == []


def test_what_differs_from_the_settings_is_reported(shards: dict[str, Any], settings: Any) -> None:
    from sqlqueue.topic_checks import check_topics

    settings.SQLQUEUE = shards | {"TOPICS": {"t": {"shards": ["a"]}, "u": {}}}
    publish("t", 1, key=KEYS["a"][0])
    settings.SQLQUEUE = shards | {"TOPICS": {"t": {}, "u": {}}}
    (found,) = check_topics(databases=[A, B])
    assert found.id == "sqlqueue.W030"
    assert "topic 't' is on the shards a, and the settings say a, b" in found.msg
    assert "say ['a']" in str(found.hint)
    Topic.objects.using(B).create(name="u", partitions=9, shards="a,b")
    Topic.objects.using(A).create(name="u", partitions=4, shards="a,b")
    assert "sqlqueue.E029" in {found.id for found in check_topics(databases=[A, B])}


@pytest.mark.parametrize("left", [{}, {"SHARDS": {"a": {"alias": A}}}])
def test_a_shard_that_is_taken_away_moves_no_key(shards: dict[str, Any], settings: Any, left: dict[str, Any]) -> None:
    from sqlqueue.topic_checks import check_topics

    publish("t", 1, key=KEYS["b"][0])
    settings.SQLQUEUE = {name: value for name, value in shards.items() if name != "SHARDS"} | left
    forget_topics()
    with pytest.raises(ConfigurationError, match=r"topic 't' has messages on shard '[ab]', which .* does not have"):
        publish("t", 2, key=KEYS["b"][0])
    assert [found.id for found in check_topics(databases=[A])] == ["sqlqueue.E029"]
    assert Message.objects.using(A).count() == 0
