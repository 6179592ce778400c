"""What publishers, handlers and processes have written, on every page: nothing of it is markup, or is obeyed or hidden
by a browser."""

import json
import re
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from html import unescape
from typing import Any
from urllib.parse import quote

import pytest
from django.contrib import admin
from django.contrib.admin.utils import quote as quoted
from django.db import models
from django.test import Client

from sqlqueue.contrib.people.models import WorkItem, WorkItemEvent
from sqlqueue.core.periodic import Recurrence, ScheduleDefinition
from sqlqueue.models import Message, Progress, Result, Topic, dead_letter_topic
from tests.admin.test_overview import page

pytestmark = [pytest.mark.django_db, pytest.mark.once]

# Of these there is none on any page. What hides, and translations have as well, is escaped where such texts belong.
ODD = "\u202e\u2066\u0085\u009b\x1b"  # turn the direction, a line's end, and what terminals obey
TEXT = f"<b>pay {ODD} exe.txt"
SITE = "/admin/sqlqueue/"
PEOPLE = "/admin/sqlqueue_people/"
SENT_BACK = re.compile(r'<(?:input|option)\b[^>]*\bvalue="[^"]*"[^>]*>')
PAGES = [
    model for model in admin.site._registry if model._meta.app_label.startswith("sqlqueue") and not model._meta.proxy
]
NOW = datetime.now(timezone.utc)
TIMES = {"expires_at": NOW + timedelta(hours=1), "attended_until": NOW + timedelta(hours=1)}


def value_of(field: models.Field) -> Any:
    """Return what is odd of a column's type: every text that is free has it."""
    if isinstance(field, models.JSONField):
        return {"at": TEXT}
    if isinstance(field, (models.CharField, models.TextField)) and not field.choices:
        return TEXT[: field.max_length]
    if isinstance(field, models.DateTimeField):
        return TIMES.get(field.name, NOW)
    if isinstance(field, models.BooleanField):
        return field.name == "refused"
    return field.choices[0][0] if field.choices else 1


def row(model: type[models.Model], **values: Any) -> Any:
    """Return a row whose every column has a value."""
    columns = [one for one in model._meta.concrete_fields if not one.primary_key or isinstance(one, models.CharField)]
    plain = [one for one in columns if not isinstance(one, (models.ForeignKey, models.BinaryField))]
    return model.objects.create(**{**{one.name: value_of(one) for one in plain}, **values})


@pytest.fixture
def rows() -> dict[str, Any]:
    """A row of each model that has a page, by the model's name, and what pages show besides."""
    definition = ScheduleDefinition("s", Recurrence(every=60.0), topic=TEXT, key=TEXT, group=TEXT)
    ended = {"original_topic": "", "original_offset": None, "failed_group": "", "fingerprint": "", "failed_at": None}
    own: dict[str, dict[str, Any]] = {
        "ConsumerGroup": {"flow": None, "flow_overrides": None},
        "Batch": {"id": f"{ODD}1", "callbacks": {"finish": {"topic": TEXT}}},
        "PeriodicSchedule": {"definition": definition.as_text()},
        "Message": {**ended, "target_group": "", "expires_at": None, "failure_count": 0},
        "CollectedMessage": {"outcomes": {TEXT: {"outcome": TEXT}}},
        "DeliveryState": {"in_flight": 0, "retry_count": 1},
    }
    found = {one.__name__: row(one, **own.get(one.__name__, {})) for one in PAGES}
    row(WorkItemEvent, item=found["WorkItem"])
    row(Progress)
    row(Result, outcome="acked")
    found["dead-letter topic"] = row(Topic, name=dead_letter_topic(TEXT))
    found["dead letter"] = row(Message, topic=dead_letter_topic(TEXT), target_group="")
    return found


def list_of(row: Any) -> str:
    return f"/admin/{row._meta.app_label}/{row._meta.model_name}/"


def address_of(place: str) -> str:
    """Return the address of a page: one of the queue's own, unless it is whole."""
    return place if place.startswith("/") else SITE + place


def pages(rows: dict[str, Any]) -> Iterator[str]:
    """Yield the addresses of every list, of every row and its history, and of the pages beside them."""
    for one in rows.values():
        at, key = list_of(one), quote(str(quoted(one.pk)))
        yield from (at, f"{at}{key}/change/", f"{at}{key}/history/")
    yield from ("", "overview/", "deadletter/")
    yield from (PEOPLE, f"{PEOPLE}mywork/")
    yield f"deadletter/list/?topic={quote(TEXT)}&group={quote(TEXT)}&fingerprint={quote(TEXT)}"
    group = rows["ConsumerGroup"].pk
    yield f"consumergroup/{group}/operation/reschedule/?delay=0&error={quote(TEXT)}&key={quote(TEXT)}&count=1"
    yield f"consumergroup/{group}/operation/move/?offset=1&count=1"
    yield f"consumergroup/{group}/operation/remove/"
    yield f"consumergroup/{group}/operation/limits/"
    topic = quote(quoted(rows["Topic"].pk))
    yield f"topic/{topic}/operation/options/"
    yield f"topic/{topic}/operation/purge/?count=1&unsettled=on"


def orders(rows: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what is sent that ends on a page: what is asked back, refused, and said to be done."""
    chosen = {"topic": TEXT, "group": TEXT, "fingerprint": TEXT, "all": "1"}
    letter = rows["dead letter"].pk
    yield "message/operation/delete/", {"_selected_action": [rows["Message"].pk, letter]}
    yield "deadletter/operation/replay/", chosen
    yield "deadletter/operation/discard/", {"topic": TEXT, "_selected_action": [letter]}
    yield "scheduledmessage/operation/take-back/", {"_selected_action": [rows["ScheduledMessage"].pk]}
    yield f"scheduledmessage/{rows['ScheduledMessage'].pk}/operation/correct/", {"topic": TEXT, "headers": "no"}
    yield f"{PEOPLE}workitem/{rows['WorkItem'].pk}/operation/assign/?version=1", {"user": TEXT}
    schedule = quote(quoted(rows["PeriodicSchedule"].pk))
    yield from ((f"periodicschedule/{schedule}/operation/{one}/", {}) for one in ("run", "resume", "pause"))
    yield f"{list_of(rows['Batch'])}{quote(quoted(rows['Batch'].pk))}/operation/retry/", {}
    yield f"consumergroup/{rows['ConsumerGroup'].pk}/operation/resume/", {}


def odd(html: str) -> list[str]:
    """Return where a page has an odd character, but for what its forms send back as it is."""
    shown = SENT_BACK.sub("", html)
    return [shown[max(0, at.start() - 120) : at.end() + 20] for at in re.finditer(f"[{ODD}]", shown)]


def test_no_page_and_no_list_shows_what_a_browser_obeys_or_hides(admin_client: Client, rows: dict[str, Any]) -> None:
    found, escaped = {}, 0
    for address, sent in (*((one, None) for one in pages(rows)), *orders(rows)):
        if sent is None:
            answer = admin_client.get(address_of(address))
        else:
            answer = admin_client.post(address_of(address), sent, follow=True)
        html = answer.content.decode()
        assert "<b>pay" not in html, address
        if answer.status_code != 200 or (where := odd(html)):
            found[address] = (answer.status_code, [] if answer.status_code != 200 else where[:3])
        escaped += r"&lt;b&gt;pay \u202e" in html
    assert not found, "\n".join(f"{address}: {said}" for address, said in found.items())
    assert escaped > len(rows)


def test_the_first_page_of_the_site_names_a_batch_that_was_changed_without_them(
    admin_client: Client, rows: dict[str, Any]
) -> None:
    admin_client.post(f"{list_of(rows['Batch'])}{quote(quoted(rows['Batch'].pk))}/operation/cancel/")
    html = page(admin_client, "/admin/")
    assert (r"&lt;b&gt;pay \u202e" in html, odd(html)) == (True, [])


def test_what_hides_is_escaped_where_handlers_and_processes_have_written(
    admin_client: Client, rows: dict[str, Any]
) -> None:
    hidden = "a\u200bb\u200fc"
    rows["WorkItem"].events.update(comment=hidden)
    for name, column in {
        "WorkItem": "reason",
        "ScheduledMessage": "refusal",
        "PeriodicSchedule": "refusal",
        "SubscriberHeartbeat": "failing",
        "DeliveryState": "last_error",
        "Request": "note",
    }.items():
        type(rows[name]).objects.update(**{column: hidden})
        at = list_of(rows[name])
        shown = f"{at}{quote(str(quoted(rows[name].pk)))}/change/"
        addresses = {"SubscriberHeartbeat": ["overview/"], "DeliveryState": [at], "PeriodicSchedule": [shown]}
        of_notes = [shown] if column == "note" else [at, shown]
        for address in addresses.get(name, of_notes):
            html = page(admin_client, address_of(address))
            assert (r"a\u200bb\u200fc" in html, hidden in html) == (True, False), address


@pytest.mark.parametrize("name", ["ScheduledMessage", "WorkItem"])
def test_a_form_has_json_escaped_and_sends_the_same_value_back(
    admin_client: Client, rows: dict[str, Any], name: str
) -> None:
    WorkItem.objects.update(state="open", assignee="", result={"at": f"{TEXT}\u200b\U000e0041"}, form=None)
    html = page(admin_client, f"{list_of(rows[name])}{rows[name].pk}/change/")
    sent = [unescape(one).strip() for one in re.findall(r"<textarea[^>]*>(.*?)</textarea>", html, re.DOTALL)]
    assert all(one == "\n" or one.isprintable() for text in sent for one in text)
    assert {"at": f"{TEXT}\u200b\U000e0041" if name == "WorkItem" else TEXT} in [json.loads(one) for one in sent if one]
