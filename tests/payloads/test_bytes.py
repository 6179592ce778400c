"""Payloads of bytes from publish to handler, on every way that a message may go."""

from typing import Any

import pytest
from django.db import connection

from sqlqueue import (
    InvalidMessage,
    NewMessage,
    Reject,
    apublish,
    asubscribe,
    publish,
    publish_many,
    publish_on_commit,
    replay,
    subscribe,
)
from sqlqueue.consumers.handlers.delivery import Delivery
from sqlqueue.database.sizes import LIGHT
from sqlqueue.log.schedule import move_due
from sqlqueue.models import Message, ScheduledMessage, dead_letter_topic
from sqlqueue.operations.edit_scheduled import edit, run_now
from sqlqueue.operations.reschedule import republish
from sqlqueue.payloads.versions import CONTENT_TYPE_LENGTH
from sqlqueue.testing import drain, published
from tests.asynchronous.loops import in_loop
from tests.consuming import QUICK, Consuming
from tests.logs import LOG

pytestmark = pytest.mark.django_db(transaction=True)

EVERY_BYTE = bytes(range(256))
HEAVY = EVERY_BYTE * (LIGHT // 256 + 1)  # is copied by the server
PDF = "application/pdf"
EACH_SIZE = pytest.mark.parametrize("content", [b"", EVERY_BYTE, HEAVY], ids=["empty", "light", "heavy"])


@pytest.fixture(autouse=True)
def quick(settings: Any) -> None:
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1}


def delivered(consuming: Consuming) -> list[tuple[Any, str | None, dict[str, Any]]]:
    """Return (payload, content_type, headers) of what is delivered now, in the order of the log."""
    found: dict[int, tuple[Any, str | None, dict[str, Any]]] = {}

    def keep(delivery: Delivery) -> None:
        found[delivery.offset] = (delivery.payload, delivery.content_type, delivery.headers)

    consuming.consumer("files", keep)
    drain()
    return [found[offset] for offset in sorted(found)]


def stored(topic: str = "files") -> tuple[Any, bytes]:
    message = Message.objects.get(topic=topic)
    assert message.payload is None
    return message.headers, bytes(message.body)


OF_PDF = {"sqlqueue-content-type": PDF}


@EACH_SIZE
def test_the_handler_gets_the_bytes_that_were_published(consuming: Consuming, content: bytes) -> None:
    publish("files", content, content_type=PDF, key="a", headers={"name": "x.pdf"})
    (found,) = delivered(consuming)
    assert found == (content, PDF, {"name": "x.pdf"})
    assert type(found[0]) is bytes


def test_bytes_without_a_type_and_json_that_is_null(consuming: Consuming) -> None:
    publish("files", b"x")
    publish("files", None)
    publish_many("files", [bytearray(b"array"), NewMessage(memoryview(b"view"), content_type="text/plain"), {"n": 1}])
    assert delivered(consuming) == [
        (b"x", "application/octet-stream", {}),
        (None, None, {}),
        (b"array", "application/octet-stream", {}),
        (b"view", "text/plain", {}),
        ({"n": 1}, None, {}),
    ]


@EACH_SIZE
def test_scheduled_bytes_enter_the_log_as_they_are(consuming: Consuming, content: bytes) -> None:
    publish("files", content, content_type=PDF, delay=100)
    publish_many("files", [NewMessage(content, content_type="a/b", delay=100), NewMessage(b"", delay=100)])
    assert [(each.payload, each.content_type) for each in published()] == [
        (content, PDF),
        (content, "a/b"),
        (b"", "application/octet-stream"),
    ]
    run_now(LOG, ScheduledMessage.objects.values_list("pk", flat=True))
    assert [(payload, kind) for payload, kind, _ in delivered(consuming)] == [
        (content, PDF),
        (content, "a/b"),
        (b"", "application/octet-stream"),
    ]
    assert [each.payload for each in published()] == [content, content, b""]


@EACH_SIZE
def test_a_dead_letter_keeps_the_bytes_and_its_replay_delivers_them(consuming: Consuming, content: bytes) -> None:
    found: list[tuple[bytes, str | None]] = []

    def handler(delivery: Any) -> None:
        if not found:
            found.append((b"rejected", ""))
            raise Reject("first")
        found.append((delivery.payload, delivery.content_type))

    consuming.consumer("files", handler)
    publish("files", content, content_type=PDF)
    consuming.drain()
    assert stored(dead_letter_topic("files")) == (OF_PDF, content)
    assert replay("files") == 1
    consuming.drain()
    assert found[1:] == [(content, PDF)]


@EACH_SIZE
@pytest.mark.parametrize("delay", [0.0, 0.001])
def test_a_copy_for_another_group_has_the_bytes(consuming: Consuming, content: bytes, delay: float) -> None:
    publish("files", content, content_type=PDF)
    offset = Message.objects.values_list("offset", flat=True).get()
    assert republish("files", "late", [offset], delay=delay) == 1
    found = []
    consuming.consumer("files", lambda delivery: found.append((delivery.payload, delivery.content_type)), group="late")
    drain(ahead=5)
    assert found == [(content, PDF)] * 2  # the message, and its copy


def test_an_editor_keeps_bytes_and_replaces_them_by_json(consuming: Consuming) -> None:
    publish("files", b"old", content_type=PDF, delay=100)
    number = ScheduledMessage.objects.values_list("pk", flat=True).get()
    edit(LOG, number, priority=0)
    assert published()[0].payload == b"old"
    edit(LOG, number, payload_json="[2]")
    assert (published()[0].payload, published()[0].content_type) == ([2], None)
    assert ScheduledMessage.objects.get().body is None


def test_batches_pulled_deliveries_and_atomic_handlers_get_bytes(consuming: Consuming) -> None:
    publish_many("files", [EVERY_BYTE, b"2"])
    batch: list[bytes] = []
    consuming.consumer("files", lambda some: batch.extend(each.payload for each in some), group="batch", batch=True)
    consuming.consumer("files", lambda one: batch.append(one.payload), group="atomic", atomic=True)
    consuming.drain()
    assert sorted(batch) == sorted([EVERY_BYTE, b"2"] * 2)
    pulled = []
    with subscribe("files", group="pull", timeout=0.5) as deliveries:
        for delivery in deliveries:
            pulled.append((delivery.payload, delivery.content_type))
            delivery.ack()
    assert sorted(pulled) == [(EVERY_BYTE, "application/octet-stream"), (b"2", "application/octet-stream")]


def test_bytes_are_limited_as_json_is(settings: Any) -> None:
    settings.SQLQUEUE = {**QUICK, "MAX_PAYLOAD_BYTES": 10}
    publish("files", b"x" * 10)
    with pytest.raises(InvalidMessage, match="have 11 bytes; 10 is the most"):
        publish("files", b"x" * 11)
    with pytest.raises(InvalidMessage, match="bytes; 10 is the most"):
        publish("files", b"x", content_type=PDF)


@pytest.mark.parametrize(
    "content_type", ["", "pdf", "a/b\r\nX: y", "a/b\n", "ä/b", 7, b"a/b", "a/b; c", "a/" + "b" * CONTENT_TYPE_LENGTH]
)
def test_a_content_type_that_is_none(content_type: Any) -> None:
    with pytest.raises(InvalidMessage, match=r"content_type (must be like 'application/pdf'|has 257 characters)"):
        publish("files", b"x", content_type=content_type)


@pytest.mark.parametrize("content_type", ["a/b", 'text/csv; charset="utf 8";x=y', "application/vnd.a+json"])
def test_a_content_type_comes_back_as_it_is(consuming: Consuming, content_type: str) -> None:
    publish("files", b"x", content_type=content_type)
    assert delivered(consuming)[0][1] == content_type


def test_json_has_no_content_type() -> None:
    with pytest.raises(InvalidMessage, match="content_type is for a payload of bytes"):
        publish("files", "text", content_type="text/plain")
    with pytest.raises(InvalidMessage, match="content_type"):
        publish_on_commit("files", {}, content_type=PDF)
    with pytest.raises(InvalidMessage, match="for the queue's own"):
        publish("files", {}, headers={"sqlqueue-content-type": PDF})
    assert not Message.objects.exists()


def scheduled_by_sql(payload: str, body: object, headers: str | None = None) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO sqlqueue_scheduled_message (topic, payload, headers, body) VALUES (%s, %s, %s, %s)",
            ["files", payload, headers, body],
        )


@EACH_SIZE
def test_plain_sql_publishes_bytes(consuming: Consuming, content: bytes) -> None:
    scheduled_by_sql("null", content, '{"sqlqueue-content-type": "image/png"}')
    scheduled_by_sql("null", content, '{"sqlqueue-content-type": "evil\\r\\nX: y"}')
    found = delivered(consuming)
    assert [each[:2] for each in found] == [(content, "image/png"), (content, "application/octet-stream")]


@pytest.mark.parametrize("content", [b"1", HEAVY], ids=["light", "heavy"])
def test_plain_sql_with_payload_and_body_is_refused(content: bytes) -> None:
    scheduled_by_sql("1", content)
    move_due(LOG)
    assert "a message with a body has the payload null" in str(ScheduledMessage.objects.get().refusal)
    assert not Message.objects.exists()


@pytest.mark.parametrize("content", [b"x" * 11, HEAVY], ids=["light", "heavy"])
def test_plain_sql_with_too_many_bytes_is_refused(settings: Any, content: bytes) -> None:
    settings.SQLQUEUE = {**QUICK, "MAX_PAYLOAD_BYTES": len(content) - 1}
    scheduled_by_sql("null", content)
    move_due(LOG)
    assert f"have {len(content)} bytes" in str(ScheduledMessage.objects.get().refusal)


@pytest.mark.database("sqlite")
@pytest.mark.parametrize("text", ["x", "x" * (LIGHT + 1)], ids=["light", "heavy"])
def test_plain_sql_with_a_text_for_bytes_is_refused(text: str) -> None:
    scheduled_by_sql("null", text)
    move_due(LOG)
    assert "body is a text" in str(ScheduledMessage.objects.get().refusal)


def test_ids_hold_for_bytes() -> None:
    assert publish("files", b"1", id="a").created
    assert not publish("files", b"2", id="a").created
    assert publish_many("files", [NewMessage(b"3", id="a"), NewMessage(b"4", id="b")]).created == 1
    assert [each.payload for each in published()] == [b"1", b"4"]


def test_async_deliveries_have_the_content_type(consuming: Consuming) -> None:
    async def receive() -> list[tuple[Any, str | None, dict[str, Any]]]:
        await apublish("files", b"1", content_type=PDF, expires=60)
        await apublish("files", {"n": 1}, headers={"h": 1})
        found = []
        async with asubscribe("files", timeout=60) as deliveries:
            async for delivery in deliveries:
                found.append((delivery.payload, delivery.content_type, delivery.headers))
                await delivery.aack()
                if len(found) == 2:
                    break
        return found

    assert sorted(in_loop(receive()), key=str) == [(b"1", PDF, {}), ({"n": 1}, None, {"h": 1})]
