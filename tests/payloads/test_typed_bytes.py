"""Bytes on topics with a payload type: only where that is `bytes`, or an upcast makes an instance of them."""

from typing import Any

import pytest

from sqlqueue import InvalidMessage, publish
from sqlqueue.consumers.handlers.delivery import Delivery
from sqlqueue.log.schedule import move_due
from sqlqueue.models import Message, dead_letter_topic
from sqlqueue.testing import drain
from tests.consuming import QUICK, Consuming
from tests.logs import LOG
from tests.payloads.shapes import Line, OrderPlaced

pytestmark = pytest.mark.django_db(transaction=True)

FRAMED = b"7"


def typed(settings: Any, kind: Any, **options: Any) -> None:
    settings.SQLQUEUE = {**QUICK, "PARTITIONS": 1, "TOPICS": {"t": {"payload_type": kind, **options}, "any": {}}}


def from_bytes(content: bytes) -> dict[str, Any]:
    return {"sku": content.decode(), "count": 1}


def test_a_type_of_json_refuses_bytes_and_the_type_bytes_refuses_json(consuming: Consuming, settings: Any) -> None:
    typed(settings, OrderPlaced)
    with pytest.raises(InvalidMessage, match="topic 't': payload does not fit OrderPlaced: it is bytes"):
        publish("t", b"x")
    typed(settings, bytes)
    for payload in ("text", None, {"n": 1}):
        with pytest.raises(InvalidMessage, match="topic 't': payload must be bytes, not"):
            publish("t", payload)
    publish("t", b"x", content_type="a/b")
    seen: list[Any] = []
    consuming.consumer("t", lambda delivery: seen.append((delivery.payload, delivery.content_type)))
    drain()
    assert seen == [(b"x", "a/b")]


@pytest.mark.parametrize(
    ("kind", "payload", "body", "said"),
    [(Line, "null", b"x", "does not fit Line: it is bytes"), (bytes, '"text"', None, "does not fit bytes: it is JSON")],
)
def test_what_does_not_fit_is_a_dead_letter_at_once(
    consuming: Consuming, settings: Any, kind: Any, payload: str, body: bytes | None, said: str
) -> None:
    typed(settings, kind)
    text = "INSERT INTO sqlqueue_scheduled_message (topic, payload, body) VALUES ('t', %s, %s)"
    LOG.execute(text, (payload, body))
    move_due(LOG)

    def look(delivery: Delivery) -> None:
        print(delivery.payload)

    consuming.consumer("t", look)
    drain()
    dead = Message.objects.get(topic=dead_letter_topic("t"))
    assert said in str(dead.last_error)
    assert dead.failure_count == 1


def test_an_upcast_reads_bytes_of_before_and_a_later_version_is_json(consuming: Consuming, settings: Any) -> None:
    typed(settings, bytes)
    publish("t", FRAMED)
    typed(settings, Line, payload_version=2)
    publish("t", Line("b", 2))
    seen: list[Any] = []
    consuming.consumer("t", lambda delivery: seen.append(delivery.payload), upcast={1: from_bytes})
    drain()
    assert sorted(seen, key=repr) == sorted([Line("7", 1), Line("b", 2)], key=repr)


def test_an_upcast_without_a_type_gets_bytes_and_the_type_bytes_what_it_returns(
    consuming: Consuming, settings: Any
) -> None:
    publish("any", b"ab")
    publish("t", "text")
    seen: list[Any] = []
    settings.SQLQUEUE = {
        **QUICK,
        "TOPICS": {"any": {"payload_version": 2}, "t": {"payload_type": bytes, "payload_version": 2}},
    }
    consuming.consumer("any", lambda delivery: seen.append(delivery.payload), upcast={1: lambda old: old.upper()})
    consuming.consumer("t", lambda delivery: seen.append(delivery.payload), upcast={1: lambda old: old.encode()})
    drain()
    assert sorted(seen) == [b"AB", b"text"]
