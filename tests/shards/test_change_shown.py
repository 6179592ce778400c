"""What operators see of a change of a topic's shards that is under way, and of a group that is missing on a former
shard."""

import html
import time
from datetime import timedelta
from typing import Any

import pytest
from django.db import Error, connections
from django.db.models import F
from django.test import Client
from django.urls import reverse

from sqlqueue import NewMessage, publish_many
from sqlqueue.conf import settings as queue_settings
from sqlqueue.consumers.registry import registry
from sqlqueue.log import groups
from sqlqueue.log.placement import newest_placement
from sqlqueue.models import ConsumerGroup, Layout, PartitionLease, Topic
from sqlqueue.models.partition_lease import WAITS
from sqlqueue.monitoring import diagnostics, doctor, responses
from sqlqueue.operations.reshard import Reshard, announce_at, begin
from sqlqueue.stats import attention, finding_kinds, group_attention
from sqlqueue.stats.cached import recent_survey
from sqlqueue.stats.changes import UNANNOUNCED, ChangeSurvey
from sqlqueue.stats.groups import GroupSurvey
from sqlqueue.stats.other_shards import FAILED, SILENT
from sqlqueue.stats.survey import survey
from sqlqueue.testing import Failures, _run_due, drain
from tests.management.running import run
from tests.shards.aliases import A, B, b_is_down, table_is_missing
from tests.shards.orders import ALTER, KEYS, TOPIC

pytestmark = pytest.mark.long("mariadb", "mysql", "postgresql")


@pytest.fixture(autouse=True)
def registered(handled: list[tuple[str, int]]) -> None:
    groups.register(A, "g", TOPIC)
    recent_survey.forget()


def change_on(alias: str) -> ChangeSurvey | None:
    return next(topic.change for topic in survey(alias).topics if topic.name == TOPIC)


def group_on(alias: str) -> GroupSurvey:
    found = survey(alias).group(TOPIC, "g")
    assert found is not None
    return found


def left_after_announcing(*aliases: str) -> None:
    begin(TOPIC, ["a", "b"])
    placed = newest_placement(TOPIC)
    assert placed is not None
    for alias in aliases:
        announce_at(alias, TOPIC, placed.spread)


def page(client: Client, *names: str) -> str:
    return html.unescape(client.get(reverse(*names)).content.decode())


def gauges() -> str:
    from prometheus_client import CollectorRegistry, generate_latest

    from sqlqueue.monitoring.gauges import StatsCollector

    recent_survey.forget()
    metrics = CollectorRegistry()
    metrics.register(StatsCollector())
    return generate_latest(metrics).decode()


def test_a_change_that_was_left_is_shown_with_what_carries_it_on(admin_client: Client) -> None:
    assert change_on(A) is None
    left_after_announcing(B)
    change = change_on(A)
    assert change is not None
    assert (change.before, change.after, change.of_shards, change.may_abort) == ("a", "a,b", True, True)
    assert [(one.shard, one.stage == UNANNOUNCED) for one in change.on_shards] == [("b", False), ("a", True)]
    assert change.on_shards[0].age is not None
    assert change.on_shards[1].age is None

    what = "The keys of orders go over from the shards a to a, b. That was begun 0 seconds ago."
    told = "a: It has not announced the change to its publishers yet."
    advice = "“python manage.py queuetopic alter orders --shards a,b”"
    abort = "“python manage.py queuetopic alter orders --abort” takes it back."
    status = run("queuestatus")
    for text in (told, advice, abort, "being changed"):
        assert text in status.out
    assert status.out.index("shard a\n") < status.out.index(told) < status.out.index("shard b\n")
    assert [one.hint for one in doctor.examine(diagnostics.read(A, [])) if told in one.text and abort in one.hint]
    topic_url = reverse("admin:sqlqueue_topic_change", args=[Topic.objects.using(A).get(name=TOPIC).pk])
    shown = html.unescape(admin_client.get(topic_url).content.decode())
    for text in (what.split(". ")[0], told.removeprefix("a: "), advice, abort, "Change under way"):
        assert text in shown
    overview = page(admin_client, "admin:sqlqueue_overview_changelist")
    assert told in overview
    assert topic_url in overview
    body = responses.health(detailed=True).body["shards"]["a"]
    assert [one["kind"] for one in body["attention"]].count(finding_kinds.CHANGE) == 1


def test_a_shard_that_does_not_answer_is_named() -> None:
    left_after_announcing(A)
    with b_is_down():
        change = change_on(A)
        assert change is not None
        assert [(one.shard, one.stage) for one in change.on_shards if one.stage == SILENT] == [("b", SILENT)]
        assert "b: It does not answer, and is waited for." in run("queuestatus", "--shard", "a").out
    change = change_on(A)
    assert change is not None
    assert SILENT not in {one.stage for one in change.on_shards}


def test_a_shard_that_cannot_be_asked_is_named_with_its_error(admin_client: Client) -> None:
    left_after_announcing(A, B)
    with table_is_missing(B, "sqlqueue_layout"):
        change = change_on(A)
        assert change is not None
        assert [(one.shard, one.stage) for one in change.on_shards if one.error] == [("b", FAILED)]
        told = "b: How far it is could not be asked: "
        assert told in run("queuestatus", "--shard", "a").out
        [found] = [one.text for one in doctor.examine(diagnostics.read(A, [])) if told in one.text]
        assert "sqlqueue_layout" in found
        assert told in page(admin_client, "admin:sqlqueue_overview_changelist")
        recent_survey.forget()
        [answer] = [one for one in [responses.health(detailed=True).body["shards"]["a"]] if one["ok"]]
        assert [told in one["text"] for one in answer["attention"] if one["kind"] == finding_kinds.CHANGE] == [True]
        assert 'sqlqueue_topic_change_age_seconds{shard="a",topic="orders"}' in gauges()
        with pytest.raises(Error):
            survey(B)
    change = change_on(A)
    assert change is not None
    assert [one.error for one in change.on_shards] == ["", ""]


def test_a_shard_that_cannot_ask_whether_keys_may_go_over_says_so() -> None:
    left_after_announcing(A, B)
    with table_is_missing(A, "sqlqueue_topic"):
        change = change_on(B)
    assert change is not None
    assert [(one.shard, one.stage == FAILED) for one in change.on_shards] == [("b", False), ("a", True)]
    assert "sqlqueue_topic" in change.on_shards[1].error
    assert not change.may_abort


def test_each_shard_tells_how_far_it_is_itself() -> None:
    left_after_announcing(B)
    change = change_on(B)
    assert change is not None
    assert (change.before, change.after, change.may_abort) == ("a", "a,b", True)
    assert [one.shard for one in change.on_shards] == ["b"]


def test_connections_of_those_that_ask_other_shards_are_counted() -> None:
    assert not diagnostics.read(B, []).altered
    left_after_announcing(B)
    assert diagnostics.read(B, []).altered
    assert not diagnostics.read(A, []).altered


def test_it_is_no_note_any_more_when_it_lasts() -> None:
    left_after_announcing(B)
    [found] = [one for one in attention.findings(survey(A)) if one.kind == finding_kinds.CHANGE]
    assert found.severity == finding_kinds.NOTE
    Layout.objects.using(B).update(created_at=F("created_at") - timedelta(seconds=2 * attention.CHANGE_TAKES))
    [found] = [one for one in attention.findings(survey(A)) if one.kind == finding_kinds.CHANGE]
    assert found.severity == finding_kinds.WARNING
    assert 'sqlqueue_topic_change_age_seconds{shard="a",topic="orders"} 12' in gauges()


def test_keys_that_go_over_cannot_be_taken_back() -> None:
    left_after_announcing(B, A)
    step = Reshard(TOPIC)
    for _ in range(100):
        if not step.step() or not (change := change_on(A)) or not change.may_abort:
            break
    change = change_on(A)
    if change is not None:  # it may be over at once
        assert not change.may_abort
        assert "--abort" not in run("queuestatus").out
    assert run(*ALTER).code in (0, 1)
    assert change_on(A) is None
    assert change_on(B) is None
    assert 'sqlqueue_topic_change_age_seconds{shard="a",topic="orders"} 0.0' in gauges()


def test_a_group_waits_for_what_it_has_left_on_the_former_shard() -> None:
    assert run(*ALTER).code == 0
    publish_many(TOPIC, [NewMessage(1, key=key) for key in KEYS])
    [waits] = group_on(B).ungranted
    assert (waits.shard, waits.why) == ("a", "behind")
    assert group_on(A).ungranted == ()
    assert "waits for what is on a" in run("queuestatus", "--shard", "b").out
    assert finding_kinds.UNGRANTED not in {one.kind for one in attention.findings(survey(B))}
    age(2 * group_attention.EPOCH_HELD)
    [found] = [one for one in attention.findings(survey(B)) if one.kind == finding_kinds.UNGRANTED]
    assert "to start what has come from the shards a" in found.text
    drain()
    assert group_on(B).ungranted == ()


def test_a_former_shard_that_cannot_be_asked_is_named_with_its_error(admin_client: Client) -> None:
    for shards in ("b", "a,b"):
        assert run("queuetopic", "alter", TOPIC, "--shards", shards, "--no-input").code == 0
    with table_is_missing(B, "sqlqueue_layout"):
        [waits] = group_on(A).ungranted
        assert (waits.shard, waits.why) == ("b", FAILED)
        assert "sqlqueue_layout" in waits.error
        [found] = [one for one in attention.findings(survey(A)) if one.kind == finding_kinds.UNGRANTED]
        assert waits.error in found.text
        assert f"b could not be asked: {waits.error}" in run("queuestatus", "--shard", "a").out
        assert waits.error in page(admin_client, "admin:sqlqueue_overview_changelist")


def test_a_shard_that_does_not_answer_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        groups.register(A, f"g{number}", TOPIC)
    for shards in ("b", "a,b"):
        assert run("queuetopic", "alter", TOPIC, "--shards", shards, "--no-input").code == 0
    tried = []
    connect = type(connections[B]).get_new_connection

    def counted(self: Any, params: Any) -> Any:
        tried.append(self.alias)
        return connect(self, params)

    monkeypatch.setattr(type(connections[B]), "get_new_connection", counted)
    with b_is_down():
        waits = [group.ungranted for group in survey(A).groups]
    assert [[(one.shard, one.why) for one in each] for each in waits] == [[("b", "silent")]] * 4
    assert tried.count(B) == 1


def age(seconds: float) -> None:
    for model in (Layout, ConsumerGroup):
        model.objects.using(B).update(created_at=F("created_at") - timedelta(seconds=seconds))


def test_a_group_that_is_missing_on_the_former_shard_starts_nothing_and_is_named(
    handled: list[tuple[str, int]], admin_client: Client
) -> None:
    assert run(*ALTER).code == 0
    publish_many(TOPIC, [NewMessage(1, key=key) for key in KEYS])
    groups.remove(A, "g", TOPIC)
    drain_alone(B)
    assert (handled, set(later_holders())) == ([], {WAITS}), "it may have messages on a that come before"
    [missing] = group_on(B).ungranted
    assert (missing.shard, missing.why) == ("a", "unregistered")
    assert group_on(B).unregistered == [], "its processes may be starting there"
    age(120)
    [found] = [one for one in doctor.examine(diagnostics.read(B, [])) if "not registered on shard a" in one.text]
    assert found.level == doctor.ERROR
    assert "runconsumers --shard a" in found.hint
    assert "queuegroup remove orders g" in found.hint
    assert "starts nothing from a: not registered there" in run("queuestatus", "--shard", "b").out
    recent_survey.forget()
    answer = responses.health(detailed=True)
    assert answer.status == 503
    passed = answer.body["shards"]["b"]["passed"]
    assert [(one["limit"], one["value"]) for one in passed] == [("unregistered_shards", 1)]
    assert 'sqlqueue_unregistered_shards{group="g",shard="b",topic="orders"} 1.0' in gauges()

    drain_alone(A)
    drain_alone(B)
    assert sorted(handled) == sorted((key, n) for key in KEYS for n in (0, 1))
    assert group_on(B).unregistered == []


def drain_alone(alias: str) -> None:
    with queue_settings.at(alias):
        _run_due(list(registry.consumers.values()), time.monotonic() + 300, 300, Failures(True))


def later_holders() -> list[str]:
    return list(PartitionLease.objects.using(B).filter(partition__gte=4).values_list("holder", flat=True))


def test_or_it_is_removed_on_the_new_one() -> None:
    assert run(*ALTER).code == 0
    groups.remove(A, "g", TOPIC)
    age(120)
    assert run("queuegroup", "remove", TOPIC, "g", "--shard", "b", "--no-input").code == 0
    assert survey(B).groups == ()
