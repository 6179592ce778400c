"""What needs attention is one list: the overview, the doctor and the health endpoint tell the same."""

import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone, translation

from sqlqueue import Delivery, Reject, publish
from sqlqueue.log.groups import register, remove
from sqlqueue.log.schedule import move_due
from sqlqueue.models import Message, ScheduledMessage
from sqlqueue.operations.topics import pause, resume
from sqlqueue.stats.attention import findings
from sqlqueue.stats.findings import AWAY, DEAD_LETTERS, PAUSED, REFUSED, STUCK, UNREAD, Finding, Kind
from sqlqueue.stats.survey import survey, survey_with_partitions
from tests.admin.test_overview import page, words
from tests.api.asking import OPTIONS, TOKEN, bearing
from tests.consuming import Consuming
from tests.logs import LOG
from tests.management.running import run
from tests.processes import wait_until

pytestmark = pytest.mark.once


def found(kind: Kind) -> list[Finding]:
    return [one for one in findings(survey(LOG)) if one.kind == kind]


@pytest.fixture
def trouble(consuming: Consuming, settings: Any) -> None:
    """Three dead letters, a paused group with a backlog, a topic without a group, a refused message and a late one."""
    settings.SQLQUEUE = OPTIONS

    def handle(delivery: Delivery) -> None:
        if delivery.payload == "bad":
            raise Reject("no")

    consuming.consumer("orders", handle, group="mail")
    for number in range(3):
        publish("orders", "bad", key=str(number))
    consuming.drain()
    register(LOG, "books", "orders", start="earliest")
    pause(LOG, "orders", "books")
    publish("parcels", 1)
    ScheduledMessage.objects.create(topic="no such name!", payload=1)
    move_due(LOG)
    ScheduledMessage.objects.create(topic="orders", payload=1, due_at=timezone.now() - timedelta(minutes=5))


def test_the_overview_the_doctor_and_the_health_endpoint_tell_the_same(trouble: None, admin_client: Client) -> None:
    with translation.override(None):
        expected = findings(survey(LOG))
    assert {one.kind.name for one in expected} == {
        "no_consumers",
        "dead_letters",
        "paused",
        "unread",
        "refused",
        "late",
    }
    shown = words(page(admin_client)).replace("&#x27;", "'")
    doctors = json.loads(run("queuedoctor", "--json").out)["findings"]
    answer = bearing(TOKEN).get("/queue/health/")
    for one in expected:
        assert f"{one.kind.word} {one.text} {one.advice}" in shown
        assert (one.severity, one.text, one.advice) in [(it["level"], it["text"], it["hint"]) for it in doctors]
    with translation.override(None):
        plain = [one.as_dict() for one in expected]
    assert answer.json()["attention"] == plain
    assert bearing(TOKEN).get("/queue/status/").json()["attention"] == plain
    assert answer.status_code == 200  # no limit is configured: what needs attention is no reason to be unwell
    assert "attention" not in Client().get("/queue/health/").json()


def test_health_still_follows_its_limits(trouble: None, settings: Any) -> None:
    settings.SQLQUEUE = {**OPTIONS, "HEALTH": {"max_dead_letters": 2}}
    assert bearing(TOKEN).get("/queue/health/").status_code == 503


def test_nothing_needs_attention_where_all_is_well(consuming: Consuming, admin_client: Client) -> None:
    consuming.consumer("orders", lambda delivery: None, group="mail")
    publish("orders", 1)
    consuming.drain()
    [only] = findings(survey(LOG))
    assert (only.kind.name, only.severity) == ("no_consumers", "note")  # and nothing waits for one
    consuming.start()
    wait_until(lambda: findings(survey(LOG)) == [], message=lambda: findings(survey(LOG)))
    assert "What needs attention Nothing" in words(page(admin_client))


def test_dead_letters_need_attention_until_they_are_gone(trouble: None) -> None:
    [letters] = found(DEAD_LETTERS)
    assert letters.text == "mail of orders has 3 dead letters."
    assert (letters.topic, letters.group, letters.severity) == ("orders", "mail", "warning")
    Message.objects.dead_letters().delete()
    assert not found(DEAD_LETTERS)


def test_dead_letters_of_a_group_that_was_removed_are_told_as_well(trouble: None) -> None:
    remove(LOG, "mail", "orders")
    [letters] = found(DEAD_LETTERS)
    assert letters.text == "orders has 3 dead letters of groups that are not registered any more."


def test_a_paused_group_is_told_with_its_backlog_and_is_neither_away_nor_stuck(trouble: None) -> None:
    Message.objects.update(created_at=timezone.now() - timedelta(minutes=10))
    [paused] = found(PAUSED)
    assert "books of orders is paused: 3 messages wait for it" in paused.text
    assert not found(AWAY)
    assert not found(STUCK)
    assert {one.stuck for one in survey_with_partitions(LOG, "orders", "books")[1]} == {""}
    resume(LOG, "orders", "books")
    assert not found(PAUSED)
    assert found(AWAY)
    assert "standing" in {one.stuck for one in survey_with_partitions(LOG, "orders", "books")[1]}
    pause(LOG, "orders")
    assert found(PAUSED)
    assert {one.stuck for one in survey_with_partitions(LOG, "orders", "books")[1]} == {""}


def test_a_topic_without_a_group_is_told_once_it_has_messages(consuming: Consuming) -> None:
    publish("parcels", 1, delay=60)
    assert not found(UNREAD)
    publish("parcels", 1)
    [unread] = found(UNREAD)
    assert unread.text.startswith("parcels has messages, and no consumer group")
    register(LOG, "depot", "parcels")
    assert not found(UNREAD)


def test_what_was_refused_for_a_topic_that_does_not_exist_is_told(trouble: None) -> None:
    [refused] = found(REFUSED)
    assert refused.text == "1 scheduled message of topics that do not exist was refused by the log."


@pytest.mark.parametrize(
    ("permission", "link"),
    [
        ("view_consumergroup", "/consumergroup/"),
        ("view_message", "/deadletter/"),
        ("view_topic", "/topic/"),
        ("view_scheduledmessage", "/scheduledmessage/"),
    ],
)
def test_it_leads_only_where_the_user_may_go(
    trouble: None, staff: Callable[..., Client], permission: str, link: str
) -> None:
    html = page(staff("view_overview", permission))
    told = html[html.index("attention-heading") : html.index("charts-heading")]
    assert all(one.text in words(told) for one in findings(survey(LOG)))
    links = set(re.findall(r'href="/admin/sqlqueue(/[a-z]+/)', told))
    assert links == {link}


def test_it_is_told_in_the_readers_language_and_to_machines_in_english(
    trouble: None, admin_client: Client, settings: Any
) -> None:
    settings.LANGUAGE_CODE = "de"
    with translation.override("de"):
        german = findings(survey(LOG))
        shown = words(page(admin_client))
        doctors = run("queuedoctor").out
    assert all(one.text in shown for one in german)
    assert "mail of orders has 3 dead letters." in doctors
    assert not [one for one in german if one.text in doctors]
