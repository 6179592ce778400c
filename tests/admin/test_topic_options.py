"""A topic's options in the admin: an override is one, is shown as one, and is taken back."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from sqlqueue import publish
from sqlqueue.log.topic_options import apply_settings
from sqlqueue.log.topics import dead_letters
from sqlqueue.models import Topic
from tests.admin.test_overview import page, words
from tests.logs import LOG

pytestmark = [pytest.mark.django_db, pytest.mark.once]

PAGE, OPTIONS = "/admin/sqlqueue/topic/orders/change/", "/admin/sqlqueue/topic/orders/operation/options/"
TWO_DAYS = {"override_retention": "on", "retention": "172800", "history": "failures", "confirmed": "1"}


@pytest.fixture(autouse=True)
def orders() -> None:
    publish("orders", 1)


def stored() -> tuple[float | None, str, tuple[str, ...]]:
    topic = Topic.objects.get(name="orders")
    return topic.retention, topic.history, topic.overridden


def test_an_override_is_shown_and_noted_and_settings_do_not_change_it(
    staff: Callable[..., Client], settings: Any
) -> None:
    client = staff("view_topic", "change_topic")
    assert ", overridden" not in words(page(client, PAGE))
    assert "The settings say: 7 d" in words(page(client, OPTIONS))
    assert client.post(OPTIONS, TWO_DAYS)["Location"] == PAGE
    assert stored() == (172_800, "failures", ("retention",))
    assert "Retention: 2 d, overridden. The settings say: 7 d." in words(page(client, PAGE))
    [entry] = LogEntry.objects.all()
    assert entry.object_repr == "orders"
    assert entry.change_message == "Retention: 7 d → 2 d, overridden."
    client.post(OPTIONS, TWO_DAYS)
    assert LogEntry.objects.count() == 1
    settings.SQLQUEUE = {"RETENTION": 5, "HISTORY": "all"}
    text = "History is failures. The settings say: all, from the next start of runconsumers on."
    assert text in words(page(client, PAGE))
    apply_settings(LOG)
    assert stored() == (172_800, "all", ("retention",))


def test_it_is_taken_back(staff: Callable[..., Client], settings: Any) -> None:
    client = staff("view_topic", "change_topic")
    given = {"override_retention": "on", "retention": "", "override_history": "on", "history": "none"}
    client.post(OPTIONS, {**given, "confirmed": "1"})
    assert stored() == (None, "none", ("retention", "history"))
    settings.SQLQUEUE = {"RETENTION": 5}
    assert client.post(OPTIONS, {"confirmed": "1"})["Location"] == PAGE
    assert stored() == (5, "failures", ())
    assert "Retention: for ever → 5 s, as declared." in LogEntry.objects.latest("pk").change_message


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"override_retention": "on", "retention": "-1"}, "greater than or equal to 0"),
        ({"override_retention": "on", "retention": "1e300"}, "less than or equal to"),
        ({"override_retention": "on", "retention": "nan"}, "Enter a number."),
        ({"override_history": "on", "history": "some"}, "some is not one of the available choices"),
        ({"override_history": "on"}, "history must be one of"),
    ],
)
def test_what_makes_no_sense_is_refused(staff: Callable[..., Client], given: dict[str, str], said: str) -> None:
    answer = staff("view_topic", "change_topic").post(OPTIONS, {**given, "confirmed": "1"})
    assert answer.status_code == 200
    assert said in answer.content.decode()
    assert stored() == (7 * 86_400, "failures", ())
    assert not LogEntry.objects.exists()


def test_dead_letters_have_no_retention_to_be_set(staff: Callable[..., Client]) -> None:
    dead_letters(LOG, "orders")
    client = staff("view_topic", "change_topic")
    html = page(client, OPTIONS.replace("orders", "orders_dlq"))
    assert 'name="retention"' not in html
    client.post(OPTIONS.replace("orders", "orders_dlq"), {**TWO_DAYS, "override_history": "on"})
    topic = Topic.objects.get(name="orders_dlq")
    assert (topic.retention, topic.overridden) == (None, ("history",))
