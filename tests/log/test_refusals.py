"""Bad input is refused where it enters, with an error that says what to do, and nothing is written."""

from datetime import datetime, timedelta, timezone
from decimal import Decimal
from uuid import uuid4

import pytest
from django.db import transaction

from sqlqueue import (
    ConfigurationError,
    InvalidMessage,
    NewMessage,
    Postpone,
    Retry,
    publish,
    publish_many,
    publish_on_commit,
)
from sqlqueue.models import Message, ScheduledMessage
from tests.app.models import Effect

pytestmark = pytest.mark.django_db

AWARE = datetime(2030, 1, 1, tzinfo=timezone.utc)


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


NOT_JSON = {
    "a set": {1, 2},
    "bytes inside": [b"bytes"],
    "a date": AWARE,
    "a decimal": Decimal("1.5"),
    "a uuid": uuid4(),
    "NaN": float("nan"),
    "infinity": [1, {"deep": float("inf")}],
    "an object": object(),
    "half a surrogate": {"name": "\ud800"},
    "half a surrogate as a key": {"\udc00": 1},
    "a tuple as a key": {(1, 2): 3},
    "too deep": nested(100_000),
}


@pytest.mark.parametrize("payload", NOT_JSON.values(), ids=NOT_JSON.keys())
def test_a_payload_that_is_not_json(payload: object) -> None:
    with pytest.raises(
        InvalidMessage, match=r"payload (is not JSON: .+Turn it into|has text that is not valid Unicode)"
    ):
        publish("orders", payload)
    with pytest.raises(InvalidMessage):
        publish_many("orders", [1, payload])
    assert not Message.objects.exists()


DEEPEST = {"mariadb": 31, "mysql": 100, "sqlite": 500, "postgresql": 500}


def test_json_that_is_nested_deeper_than_the_database_keeps(database_name: str) -> None:
    """Refused before the database refuses it, which would break the caller's transaction, or come after its commit."""
    deepest = DEEPEST[database_name]
    alike: object = 1
    for number in range(deepest - 2):
        alike = {"[{": alike, "b": "]]}}" * 50} if number % 2 else [[], alike, {}]
    for payload in (nested(deepest), [alike] * 3):
        publish("orders", payload)
        publish("orders", 1, headers={"h": nested(deepest - 1)})
        assert Message.objects.order_by("-offset")[1].payload == payload
    before = Message.objects.count()
    with transaction.atomic():
        for payload, headers in ((nested(deepest + 1), None), ([[alike]], None), (1, {"h": nested(deepest)})):
            for send in (publish, publish_on_commit):
                for options in ({}, {"delay": 1}):
                    with pytest.raises(InvalidMessage, match=f"nested more than {deepest} deep"):
                        send("orders", payload, headers=headers, **options)  # type: ignore[operator]
            with pytest.raises(InvalidMessage, match=f"nested more than {deepest} deep"):
                publish_many("orders", [1, NewMessage(payload, headers=headers)])
        Effect.objects.create(name="goes on", value="")
    assert (Message.objects.count(), ScheduledMessage.objects.count()) == (before, 0)


@pytest.mark.parametrize("headers", [{"h": {1}}, {1: "h"}, ["h"], [], "h", "", 0], ids=repr)
def test_headers_that_are_no_dict_of_json(headers: object) -> None:
    with pytest.raises(InvalidMessage, match="headers"):
        publish("orders", 1, headers=headers)  # type: ignore[arg-type]
    assert not Message.objects.exists()


@pytest.mark.database("postgresql")
@pytest.mark.parametrize("text", ["a\0b", "\\\0", "\\\\\0"])
def test_a_nul_character_where_the_database_cannot_store_one(text: str) -> None:
    with transaction.atomic():
        for payload, headers in (({"text": text}, None), ({text: 1}, None), (1, {"h": [text]})):
            with pytest.raises(InvalidMessage, match="NUL"):
                publish("orders", payload, headers=headers)
            with pytest.raises(InvalidMessage, match="NUL"):
                publish("orders", payload, headers=headers, delay=60)
            with pytest.raises(InvalidMessage, match="NUL"):
                publish_many("orders", [1, NewMessage(payload, headers=headers)])
            with pytest.raises(InvalidMessage, match="NUL"):
                publish_on_commit("orders", payload, headers=headers)
        Effect.objects.create(name="goes on", value="")
    assert (Effect.objects.count(), Message.objects.count(), ScheduledMessage.objects.count()) == (1, 0, 0)


@pytest.mark.parametrize("headers", [None, {}])
def test_no_headers_are_no_headers(headers: dict | None) -> None:
    publish("orders", 1, headers=headers)
    assert Message.objects.get().headers is None


@pytest.mark.parametrize("option", ["key", "id"])
@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("k" * 256, "256 characters; 255 is the most"),
        ("✈" * 300, "300 characters"),
        ("a\0b", "NUL"),
        ("\ud800", "not valid Unicode"),
        (7, "must be a string, not int"),
        (b"a", "must be a string, not bytes"),
    ],
)
def test_keys_and_ids_that_could_not_be_kept_whole(option: str, value: object, said: str) -> None:
    with pytest.raises(InvalidMessage, match=said):
        publish("orders", 1, **{option: value})
    with pytest.raises(InvalidMessage, match=said):
        publish_many("orders", [NewMessage(0), NewMessage(1, **{option: value})])
    with pytest.raises(InvalidMessage, match=said):
        publish("orders", 1, delay=1, **{option: value})
    assert not Message.objects.exists()
    assert not ScheduledMessage.objects.exists()


def test_a_key_that_is_none() -> None:
    with pytest.raises(InvalidMessage, match="key must be a string, not NoneType"):
        publish("orders", 1, key=None)  # type: ignore[arg-type]


def test_an_id_that_is_empty() -> None:
    with pytest.raises(InvalidMessage, match="leave it out"):
        publish("orders", 1, id="")


@pytest.mark.parametrize("topic", ["", "with space", "ünïcode", "-begins", "x" * 101, 7, None, ["a"], "a\n"], ids=repr)
def test_a_topic_that_is_no_name(topic: object) -> None:
    with pytest.raises(ConfigurationError, match="topic"):
        publish(topic, 1)  # type: ignore[arg-type]
    assert not Message.objects.exists()


@pytest.mark.parametrize("priority", [-1, 1, 1.0, "0", None, 32768], ids=repr)
def test_a_priority_that_the_topic_does_not_have(priority: object) -> None:
    with pytest.raises(InvalidMessage, match=r"priority .+SQLQUEUE\['TOPICS'\]\['orders'\]\['priorities'\]"):
        publish("orders", 1, priority=priority)  # type: ignore[arg-type]
    with pytest.raises(InvalidMessage, match="priority"):
        publish_many("orders", [NewMessage(1, priority=priority)])  # type: ignore[arg-type]
    assert not Message.objects.exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"delay": -0.1}, "between 0 and ten years"),
        ({"delay": timedelta(seconds=-1)}, "between 0 and ten years"),
        ({"delay": float("nan")}, "number of seconds"),
        ({"delay": float("inf")}, "ten years"),
        ({"delay": "5"}, "number of seconds or a timedelta"),
        ({"delay": True}, "number of seconds or a timedelta"),
        ({"at": datetime(2030, 1, 1)}, "aware datetime"),  # noqa: DTZ001
        ({"at": "2030-01-01"}, "aware datetime"),
        ({"at": AWARE, "delay": 1}, "not both"),
    ],
)
def test_a_time_that_is_no_time(options: dict, said: str) -> None:
    with pytest.raises(InvalidMessage, match=said):
        publish("orders", 1, **options)
    assert not Message.objects.exists()
    assert not ScheduledMessage.objects.exists()


@pytest.mark.parametrize("delay", [-1, timedelta(seconds=-1), float("nan"), "soon"], ids=repr)
def test_a_delay_that_a_handler_asks_for(delay: object) -> None:
    for error in (Retry, Postpone):
        with pytest.raises(InvalidMessage, match="delay"):
            error(delay=delay)  # type: ignore[arg-type]


def test_a_target_group_that_is_no_name() -> None:
    with pytest.raises(ConfigurationError, match="group"):
        publish("orders", 1, group="no name")


def test_a_refusal_leaves_the_callers_transaction_alone() -> None:
    with transaction.atomic():
        publish("orders", "before")
        with pytest.raises(InvalidMessage):
            publish("orders", {1})
        with pytest.raises(InvalidMessage):
            publish_many("orders", [1, {1}])
        Effect.objects.create(name="goes on", value="")
    assert Effect.objects.count() == 1
    assert [message.payload for message in Message.objects.all()] == ["before"]
