"""What people have not done is counted by topic, and told wherever the queue's figures are."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from sqlqueue import publish
from sqlqueue.contrib.people.models import WorkItem
from sqlqueue.core.effects import Count
from sqlqueue.monitoring.gauges import StatsCollector
from sqlqueue.stats import attention, counting
from sqlqueue.stats.cached import recent_survey
from sqlqueue.stats.survey import survey
from sqlqueue.stats.topics import TopicSurvey
from tests.admin.test_overview import page, words
from tests.contrib.people.test_work import item_of
from tests.logs import LOG
from tests.management.running import run

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def work() -> None:
    """Two open items and one in review, of which two are overdue, one that is done, and a topic without any."""
    publish("refunds", 1)
    publish("plain", 1)
    past, later = (timezone.now() + timedelta(hours=hours) for hours in (-1, 1))
    given: list[dict[str, Any]] = [
        {"due_at": past},
        {"due_at": later, "topic": "refunds_dlq"},
        {"due_at": past, "state": "review"},
        {"due_at": past, "state": "done"},
    ]
    for offset, values in enumerate(given):
        item_of(**{"topic": "refunds", "message_offset": offset, **values})


def topic(name: str) -> TopicSurvey:
    return next(one for one in survey(LOG).topics if one.name == name)


def gauges() -> list[Any]:
    recent_survey.forget()
    return [sample for family in StatsCollector().collect() for sample in family.samples]


def test_the_survey_counts_them(work: None, monkeypatch: pytest.MonkeyPatch) -> None:
    refunds, plain = topic("refunds"), topic("plain")
    assert refunds.counts == {"open_work_items": Count(3), "overdue_work_items": Count(2)}
    assert plain.counts == {"open_work_items": Count(0), "overdue_work_items": Count(0)}
    samples = {(one.name, one.labels["topic"]): one.value for one in gauges() if "topic" in one.labels}
    found = [samples[f"sqlqueue_{name}_work_items", of] for of in ("refunds", "plain") for name in ("open", "overdue")]
    assert found == [3, 2, 0, 0]
    monkeypatch.setattr(counting, "MOST_ROWS", 1)
    refunds = topic("refunds")
    assert refunds.counts == {"open_work_items": Count(2, more=True), "overdue_work_items": Count(2, more=True)}


def test_commands_and_the_overview_tell_them(work: None, staff: Callable[..., Client]) -> None:
    assert "refunds: 3 open work items, 2 overdue work items" in run("queuestatus").out
    told = {one["name"]: one for one in json.loads(run("queuestatus", "--json").out)["topics"]}
    assert told["refunds"]["counts"]["open_work_items"] == {"count": 3, "more": False}
    assert "2 work items of refunds are overdue." in run("queuedoctor").out
    html = page(staff("view_overview", "view_workitem"))
    assert "3 open work items · 2 overdue work items" in words(html)
    assert "2 work items of refunds are overdue." in words(html)
    assert "/admin/sqlqueue_people/mywork/" in html
    assert "/admin/sqlqueue_people/" not in page(staff("view_overview"))


def test_without_any_nothing_is_said(work: None, staff: Callable[..., Client]) -> None:
    WorkItem.objects.update(state="done")
    assert "work items" not in run("queuestatus").out
    assert "work items" not in run("queuedoctor").out
    assert "work item" not in words(page(staff("view_overview", "view_workitem"))).partition("Attention")[2]
    assert not [one for one in attention.findings(survey(LOG)) if one.kind.name == "overdue_work_items"]
