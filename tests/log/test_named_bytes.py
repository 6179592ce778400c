"""Named scheduled messages of bytes, and those that expire: a replacement leaves nothing of what was there."""

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from sqlqueue import get_scheduled, publish
from sqlqueue.database.sizes import LIGHT
from sqlqueue.log.schedule import move_due
from sqlqueue.models import Message, ScheduledMessage
from tests.logs import LOG

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = timedelta(hours=1)
PDF = "application/pdf"
EACH_SIZE = pytest.mark.parametrize("content", [b"", b"\0\xff", b"x" * (LIGHT + 1)], ids=["empty", "light", "heavy"])


@pytest.fixture(autouse=True)
def topics(settings: Any) -> None:
    settings.SQLQUEUE = {"TOPICS": {"files": {}}}


def scheduled(payload: Any, **options: Any) -> str:
    return publish("files", payload, key="a", id="x", on_conflict="replace", **({"delay": HOUR} | options)).status


def seen() -> tuple[Any, str | None, dict[str, Any], float | None]:
    found = get_scheduled("files", id="x", key="a")
    assert found is not None
    return found.payload, found.content_type, found.headers, found.expires_after


def moved() -> Message:
    ScheduledMessage.objects.update(due_at=datetime.now(timezone.utc) - timedelta(minutes=1))
    assert move_due(LOG) == 1
    return Message.objects.get()


@EACH_SIZE
def test_bytes_replace_json(content: bytes) -> None:
    assert scheduled({"n": 1}, headers={"h": 1}) == "created"
    assert seen() == ({"n": 1}, None, {"h": 1}, None)
    assert scheduled(content, content_type=PDF, expires=HOUR) == "updated"
    assert seen() == (content, PDF, {}, 3600)
    message = moved()
    assert (message.payload, bytes(message.body or b"")) == (None, content)
    assert message.headers == {"sqlqueue-content-type": PDF}
    assert message.due_at is not None
    assert message.published_at is not None
    assert message.expires_at is not None
    assert abs(message.expires_at - message.due_at - HOUR) < timedelta(seconds=1)


@EACH_SIZE
def test_json_replaces_bytes(content: bytes) -> None:
    assert scheduled(content, content_type=PDF, expires=HOUR) == "created"
    assert seen() == (content, PDF, {}, 3600)
    assert scheduled({"n": 2}) == "updated"
    assert seen() == ({"n": 2}, None, {}, None)
    message = moved()
    assert (message.payload, message.body, message.headers, message.expires_at) == ({"n": 2}, None, None, None)


def test_bytes_without_a_type() -> None:
    scheduled(b"1")
    assert seen() == (b"1", "application/octet-stream", {}, None)


@pytest.mark.parametrize("payload", [b"now", "now"])
def test_what_replaces_a_scheduled_message_by_entering_the_log_expires(payload: Any) -> None:
    scheduled(b"later", content_type=PDF)
    status = publish("files", payload, key="a", id="x", on_conflict="replace", expires=HOUR).status
    assert status == "updated"
    message = Message.objects.get()
    assert (message.payload, message.body and bytes(message.body)) == (
        (None, payload) if isinstance(payload, bytes) else (payload, None)
    )
    assert message.expires_at is not None
    assert abs(message.expires_at - message.created_at - HOUR) < timedelta(seconds=1)
    assert message.published_at is not None
    assert message.published_at <= message.created_at
