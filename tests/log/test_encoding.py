"""What publishers give becomes JSON that comes back equal, or is refused; SQLQUEUE["JSON_ENCODER"] may write more."""

import json
import re
import uuid
from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pytest
from django.core.serializers.json import DjangoJSONEncoder
from django.db import connection
from django.test import override_settings
from django.utils.translation import gettext_lazy

from sqlqueue import InvalidMessage, NewMessage, publish, publish_many, publish_on_commit
from sqlqueue.checks.configuration import check_settings
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.models import Message, ScheduledMessage
from sqlqueue.testing import published

DJANGOS = "django.core.serializers.json.DjangoJSONEncoder"

pytestmark = pytest.mark.django_db


class Lax(json.JSONEncoder):
    """Insists on rules of its own, some of which JSON does not have."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options | {"allow_nan": True, "ensure_ascii": True})


class Spaced(json.JSONEncoder):
    """Writes by Python, and with spaces."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options | {"indent": 2})

    def default(self, o: Any) -> Any:
        return {"set": tuple(sorted(o))} if isinstance(o, set) else super().default(o)


class Stubborn(json.JSONEncoder):
    def __init__(self) -> None:
        super().__init__()


class Bytes(json.JSONEncoder):
    def encode(self, o: Any) -> Any:
        return b"{}"


def no_class() -> None: ...


@pytest.fixture
def encoder(request: pytest.FixtureRequest) -> Iterator[None]:
    with override_settings(SQLQUEUE={"JSON_ENCODER": request.param}):
        yield


def of_this_module(made: type) -> str:
    return f"{__name__}.{made.__qualname__}"


@pytest.mark.parametrize("wrong", [{1: 2}, {1: "a", "1": "b"}, (1, 2), [("a", "b")], {"a": {None: 1}}], ids=repr)
def test_what_would_come_back_changed_is_refused_by_every_operation(wrong: Any) -> None:
    for payload, headers in ((wrong, None), (1, {"h": wrong})):
        for send in (publish, publish_on_commit):
            with pytest.raises(InvalidMessage, match="would come back as"):
                send("orders", payload, headers=headers)
        with pytest.raises(InvalidMessage, match="would come back as"):
            publish("orders", payload, headers=headers, delay=60)
        with pytest.raises(InvalidMessage, match="would come back as"):
            publish_many("orders", [1, NewMessage(payload, headers=headers)])
    assert not Message.objects.exists()
    assert not ScheduledMessage.objects.exists()


@pytest.mark.parametrize("number", [2**64, 2**64 + 1, -(2**63) - 1, 10**30 + 1], ids=repr)
def test_a_whole_number_of_more_than_64_bits_comes_back_equal_or_is_refused(number: int) -> None:
    kept: int | str = number
    if connection.vendor == "mysql" and not connection.mysql_is_mariadb:
        with pytest.raises(InvalidMessage, match=r"as a float.+str\("):
            publish("orders", {"n": [number]})
        kept = str(number)
    publish("orders", {"n": [kept]})
    assert [message.payload for message in published()] == [{"n": [kept]}]


@pytest.mark.parametrize("number", [2**64 - 1, -(2**63), 0.1 + 0.2, 5e-324, 123456789012345678.0], ids=repr)
def test_all_other_numbers_come_back_equal(number: float) -> None:
    publish("orders", [number])
    assert [message.payload for message in published()] == [[number]]


def test_a_refusal_of_what_is_not_json_names_the_setting() -> None:
    with pytest.raises(InvalidMessage, match=r"datetime.+JSON_ENCODER.+DjangoJSONEncoder"):
        publish("orders", {"at": datetime.now(timezone.utc)})


@pytest.mark.parametrize("encoder", [DJANGOS], indirect=True)
def test_djangos_encoder_writes_dates_decimals_and_uuids(encoder: None) -> None:
    number = uuid.UUID(int=7)
    given = {"on": date(2013, 1, 1), "sum": Decimal("1.10"), "id": number, "said": gettext_lazy("yes")}
    written = {"on": "2013-01-01", "sum": "1.10", "id": str(number), "said": "yes"}
    publish("orders", given, headers=given)
    publish_many("orders", [NewMessage(given, headers=given)])
    publish("orders", [given], delay=60)
    for message in Message.objects.all():
        assert (message.payload, message.headers) == (written, written)
    assert ScheduledMessage.objects.get().payload == [written]


@pytest.mark.parametrize("encoder", [DJANGOS, of_this_module(Lax), of_this_module(Spaced)], indirect=True)
@pytest.mark.parametrize(
    "wrong", [{1: 2}, (1, 2), [{"a": (1,)}], float("nan"), [float("inf")], "\ud800", object()], ids=repr
)
def test_with_an_encoder_of_ones_own_all_else_is_refused_as_before(encoder: None, wrong: Any) -> None:
    with pytest.raises(InvalidMessage, match="payload"):
        publish("orders", wrong)
    with pytest.raises(InvalidMessage, match="headers"):
        publish("orders", 1, headers={"h": wrong})


@pytest.mark.parametrize("encoder", [of_this_module(Lax), of_this_module(Spaced)], indirect=True)
def test_what_a_custom_encoder_adds_does_no_harm(encoder: None) -> None:
    value = {"text": "NaN and ü and \\u", "n": [1, 1.5, None, True]}
    publish("orders", value)
    assert [message.payload for message in published("orders")] == [value]


@pytest.mark.parametrize("encoder", [of_this_module(Spaced)], indirect=True)
def test_what_an_encoder_makes_is_its_own_affair(encoder: None) -> None:
    publish("orders", {"of": {2, 1}})
    assert [message.payload for message in published("orders")] == [{"of": {"set": [1, 2]}}]


WRONG = {
    "nowhere.to.be_found": "cannot be imported",
    "sqlqueue.testing.nothing": "cannot be imported",
    "json.dumps": "subclass of json.JSONEncoder",
    "decimal.Decimal": "subclass of json.JSONEncoder",
    of_this_module(Stubborn): "cannot be used",
    of_this_module(Bytes): "writes bytes",
    f"{__name__}.no_class": "subclass of json.JSONEncoder",
    "json": "dotted path",
}


@pytest.mark.parametrize(("path", "said"), WRONG.items())
def test_an_encoder_that_cannot_be_used_is_an_error_of_the_checks_and_of_publish(path: str, said: str) -> None:
    with override_settings(SQLQUEUE={"JSON_ENCODER": path}):
        (error,) = check_settings()
        assert (error.id, said in error.msg) == ("sqlqueue.E001", True)
        with pytest.raises(ConfigurationError, match=re.escape(said)):
            publish("orders", 1)


@pytest.mark.parametrize("encoder", [DJANGOS, of_this_module(Lax)], indirect=True)
def test_an_encoder_that_can_be_used_is_none(encoder: None) -> None:
    assert check_settings() == []


def test_the_encoder_is_given_by_its_path_and_not_as_a_class() -> None:
    with override_settings(SQLQUEUE={"JSON_ENCODER": DjangoJSONEncoder}):
        (error,) = check_settings()
        assert "dotted path" in error.msg
