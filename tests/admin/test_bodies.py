"""Payloads of bytes in the admin: their size and type, a file to save, and nothing that a browser would run."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from sqlqueue import publish
from sqlqueue.models import Message, ScheduledMessage
from tests.admin.operating import operation

pytestmark = pytest.mark.django_db

SCRIPT = b"<script>alert('x')</script>"
NO_TYPE = 'a/b"><script>'


def published(content: bytes, **options: Any) -> Message:
    publish("t", content, **options)
    return Message.objects.order_by("-offset")[0]


def scheduled(content: bytes, **options: Any) -> ScheduledMessage:
    publish("t", content, delay=3600, **options)
    return ScheduledMessage.objects.order_by("-id")[0]


def shown(client: Client, name: str, *key: int) -> str:
    answer = client.get(reverse(f"admin:sqlqueue_{name}", args=key))
    assert answer.status_code == 200
    return answer.content.decode()


@pytest.mark.parametrize(("model", "make"), [("message", published), ("scheduledmessage", scheduled)])
def test_lists_and_pages_show_type_and_size_and_no_byte(
    admin_client: Client, model: str, make: Callable[..., Any]
) -> None:
    row = make(SCRIPT * 100, content_type="text/html", expires=90)
    for name, key in ((f"{model}_changelist", ()), (f"{model}_change", (row.pk,))):
        html = shown(admin_client, name, *key)
        assert "text/html, 2.6" in html
        assert "alert(" not in html
    assert reverse(f"admin:sqlqueue_{model}_body", args=[row.pk]) in html
    assert "Expires" in html


@pytest.mark.parametrize(("model", "make"), [("message", published), ("scheduledmessage", scheduled)])
def test_the_bytes_are_a_file_to_save(admin_client: Client, model: str, make: Callable[..., Any]) -> None:
    content = bytes(range(256)) + SCRIPT
    for kind, suffix in (("application/pdf", ".pdf"), ("text/html; charset=utf-8", ".html"), ("x/y", ".bin")):
        row = make(content, content_type=kind)
        answer = admin_client.get(reverse(f"admin:sqlqueue_{model}_body", args=[row.pk]))
        assert answer.content == content
        assert answer["Content-Type"] == "application/octet-stream"
        assert answer["Content-Disposition"] == f'attachment; filename="message-{row.pk}{suffix}"'
        assert answer["X-Content-Type-Options"] == "nosniff"
        assert "sandbox" in answer["Content-Security-Policy"]


def test_a_type_that_is_none_is_not_repeated(admin_client: Client) -> None:
    row = published(b"x")
    Message.objects.filter(pk=row.pk).update(headers={"sqlqueue-content-type": NO_TYPE})
    assert "application/octet-stream, 1" in shown(admin_client, "message_change", row.pk)
    assert admin_client.get(reverse("admin:sqlqueue_message_body", args=[row.pk])).content == b"x"


@pytest.mark.parametrize(("model", "make"), [("message", published), ("scheduledmessage", scheduled)])
def test_only_those_who_may_see_the_message_get_its_bytes(
    staff: Callable[..., Client], model: str, make: Callable[..., Any]
) -> None:
    url = reverse(f"admin:sqlqueue_{model}_body", args=[make(b"x").pk])
    other = {"message": "view_scheduledmessage", "scheduledmessage": "view_message"}[model]
    assert staff(other).get(url).status_code == 403
    assert staff(f"view_{model}").get(url).status_code == 200
    assert Client().get(url).status_code == 302


@pytest.mark.parametrize("model", ["message", "scheduledmessage"])
def test_json_and_what_is_not_there_have_no_bytes(admin_client: Client, model: str) -> None:
    publish("t", None)
    publish("t", None, delay=100)
    (row,) = (Message if model == "message" else ScheduledMessage).objects.all()
    for key in (row.pk, row.pk + 1, 2**63, 10**30):
        assert admin_client.get(reverse(f"admin:sqlqueue_{model}_body", args=[key])).status_code == 404
    assert "null" in shown(admin_client, f"{model}_change", row.pk)


def test_a_scheduled_message_of_bytes_can_be_edited_but_for_its_bytes(admin_client: Client) -> None:
    row = scheduled(b"\x00\xff", content_type="a/b", expires=60)
    url = operation("scheduledmessage", "correct", row.pk)
    values = {"at": "2030-01-01T00:00:00", "priority": "0"}
    assert admin_client.post(url, values, follow=True).status_code == 200
    row.refresh_from_db()
    assert (row.due_at.year, bytes(row.body), row.expires_after) == (2030, b"\x00\xff", 60.0)
    assert row.headers == {"sqlqueue-content-type": "a/b"}
