"""Scheduled messages in the admin: corrected, run now, taken back; by those who may, and while they are scheduled."""

import html as markup
import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from datetime import timezone as zones
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from django.utils.timezone import localtime

from sqlqueue import publish
from sqlqueue.admin import scheduled_messages
from sqlqueue.log.schedule import move_due
from sqlqueue.models import Message, ScheduledMessage
from sqlqueue.operations.edit_scheduled import run_now
from tests.admin.operating import operate, operation
from tests.logs import LOG

pytestmark = pytest.mark.django_db

LIST = "admin:sqlqueue_scheduledmessage_changelist"
CHANGE = ("view_scheduledmessage", "change_scheduledmessage")


@pytest.fixture(autouse=True)
def _topics(settings: Any) -> None:
    settings.SQLQUEUE = {**settings.SQLQUEUE, "TOPICS": {"t": {"partitions": 2, "priorities": 2}}}


def later(payload: Any = 1, **options: Any) -> ScheduledMessage:
    publish("t", payload, delay=3600, **options)
    return ScheduledMessage.objects.order_by("-id")[0]


def address(message: ScheduledMessage) -> str:
    return reverse("admin:sqlqueue_scheduledmessage_change", args=[message.pk])


def correction(message: ScheduledMessage) -> str:
    return operation("scheduledmessage", "correct", message.pk)


def values(client: Client, message: ScheduledMessage) -> dict[str, str]:
    """Return what the page's form would send as a browser does: with its own line ends."""
    page = client.get(address(message))
    assert page.status_code == 200
    form = page.context["forms"]["Values"]["form"]
    found = {}
    for field in form:
        value = field.value()
        given = "" if value is None else field.field.prepare_value(value)
        found[field.name] = given.strftime("%Y-%m-%dT%H:%M:%S") if field.name == "at" else str(given)
    return {name: value.replace("\n", "\r\n") for name, value in found.items()}


def save(client: Client, message: ScheduledMessage, **changes: Any) -> str:
    answer = operate(client, correction(message), **{**values(client, message), **changes})
    assert answer.status_code == 200
    return markup.unescape(answer.content.decode())


def test_a_person_corrects_one_that_was_refused(admin_client: Client) -> None:
    made = ScheduledMessage.objects.create(topic="t", payload={"n": 1}, priority=7)
    move_due(LOG)
    page = markup.unescape(admin_client.get(address(made)).content.decode())
    assert "The log has refused this message: priority 7 is not one of topic 't'" in page
    page = save(admin_client, made, priority="8")
    assert "priority 8 is not one of topic 't'" in page
    assert ScheduledMessage.objects.get().refused
    assert "Changed: Priority." in save(admin_client, made, priority="1")
    assert LogEntry.objects.get().change_message == "Changed: Priority."
    assert move_due(LOG) == 1
    assert Message.objects.get(topic="t").priority == 1


def test_only_what_was_typed_is_changed(admin_client: Client) -> None:
    made = later({"text": "a\nb", "big": 12345678901234567890}, key="line\nend ", id=" x ", headers={"h": [1]})
    before = ScheduledMessage.objects.values().get()
    assert "Accepted as it is." in save(admin_client, made)
    assert ScheduledMessage.objects.values().get() == before
    when = localtime(timezone.now() + timedelta(days=1)).replace(microsecond=0)
    assert "Changed: Due." in save(admin_client, made, at=when.strftime("%Y-%m-%dT%H:%M:%S"))
    assert ScheduledMessage.objects.values().get() == {**before, "due_at": when}
    page = save(admin_client, made, payload_json='{"n": 2}', headers="", priority="1")
    assert "Changed: Priority, Payload, Headers." in page
    row = ScheduledMessage.objects.get()
    assert (row.payload, row.headers, row.priority) == ({"n": 2}, None, 1)


@pytest.mark.parametrize("hour", [0, 1], ids=["before the clocks go back", "after"])
@pytest.mark.parametrize("seconds", [0, 30])
def test_a_due_time_in_the_hour_that_comes_twice_stays_unless_it_is_changed(
    admin_client: Client, hour: int, seconds: int
) -> None:
    due = datetime(2027, 10, 31, hour, 30, seconds, 250_000, tzinfo=zones.utc)  # half past two in Berlin, both times
    made = later(key="k")
    ScheduledMessage.objects.update(due_at=due)
    with timezone.override("Europe/Berlin"):
        at = "2027-10-31T02:30" + (":30" if seconds else "")  # as a browser writes it: no seconds if there are none
        assert "Accepted as it is." in save(admin_client, made, at=at)
        assert "Changed: Priority." in save(admin_client, made, at=at, priority="1")
        assert ScheduledMessage.objects.get().due_at == due
        assert "Changed: Due." in save(admin_client, made, at="2027-10-31T03:30")
    assert ScheduledMessage.objects.get().due_at == datetime(2027, 10, 31, 2, 30, tzinfo=zones.utc)


@pytest.mark.parametrize("text", ['{"a": 1e5}', '{"a": 0.10}', '{"a": 123456789.123456789123}'])
def test_numbers_are_shown_as_they_are_stored(text: str) -> None:
    assert scheduled_messages.readable(text) == text


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"payload_json": "{'a': 1}"}, "payload is not JSON text"),
        ({"headers": "[1]"}, "headers must be a dict"),
        ({"headers": "{"}, "Expecting property name"),
        ({"at": "soon"}, "Enter a valid date/time."),
        ({"at": "9999-12-31T23:59:59"}, "ten years"),
    ],
)
def test_what_could_not_be_published_is_refused_in_the_form(admin_client: Client, wrong: Any, said: str) -> None:
    made = later({"a": 1}, id="mine")
    before = ScheduledMessage.objects.values().get()
    assert said in save(admin_client, made, **wrong)
    assert ScheduledMessage.objects.values().get() == before
    assert not LogEntry.objects.exists()


def test_one_that_has_entered_the_log_meanwhile_is_told(admin_client: Client) -> None:
    made = later()
    given = values(admin_client, made)
    run_now(LOG, [made.pk])
    move_due(LOG)
    page = operate(admin_client, correction(made), **{**given, "priority": "1"}).content.decode()
    assert f"Message {made.pk} is not scheduled any more: it has entered the log, or was taken back." in page
    assert Message.objects.get().priority == 0


def test_what_is_too_long_to_be_edited_is_left_as_it_is(admin_client: Client, monkeypatch: Any) -> None:
    monkeypatch.setattr(scheduled_messages, "MOST_EDITED", 20)
    made = later("x" * 100, headers={"h": 1})
    before = ScheduledMessage.objects.values().get()
    page = save(admin_client, made, priority="1", payload_json="1", headers="{}")
    assert "they are left as they are" in page
    assert "xxx" not in page
    assert ScheduledMessage.objects.values().get() == {**before, "priority": 1}


@pytest.mark.parametrize(
    ("name", "permission", "left"),
    [("run-now", "change_scheduledmessage", 2), ("take-back", "delete_scheduledmessage", 1)],
)
def test_those_that_are_ticked_are_run_now_or_taken_back(
    staff: Callable[..., Client], name: str, permission: str, left: int
) -> None:
    chosen, another = later(1), later(2)
    client = staff("view_scheduledmessage", permission)
    asked = client.post(reverse(LIST), {"action": name, "_selected_action": [chosen.pk], "index": "0"})
    assert asked.status_code == 200
    assert ScheduledMessage.objects.count() == 2  # nothing is done before it is confirmed
    assert f'value="{chosen.pk}"' in asked.content.decode()
    order = operation("scheduledmessage", name)
    done = client.post(order, {"_selected_action": [chosen.pk], "confirmed": "1"}, follow=True)
    assert re.search(r"(Due now|Taken back): 1\. Left alone, .*: 0\.", done.content.decode())
    assert ScheduledMessage.objects.count() == left
    assert ScheduledMessage.objects.filter(pk=another.pk).exists()
    move_due(LOG)
    assert list(Message.objects.values_list("payload", flat=True)) == ([1] if name == "run-now" else [])
    assert LogEntry.objects.get().object_id == str(chosen.pk)
    nothing = client.post(order, {"_selected_action": [chosen.pk], "confirmed": "1"}, follow=True).content.decode()
    assert "None of the chosen rows exists any more" in nothing


def test_who_may_only_look_changes_nothing(staff: Callable[..., Client]) -> None:
    made = later({"a": 1})
    before = ScheduledMessage.objects.values().get()
    assert staff().get(address(made)).status_code == 403
    guest = staff("view_scheduledmessage")
    page = guest.get(address(made)).content.decode()
    assert 'type="submit"' not in page.split('id="content-main"')[1]
    assert json.dumps({"a": 1}, indent=2) in markup.unescape(page)
    assert ScheduledMessage.objects.values().get() == before
