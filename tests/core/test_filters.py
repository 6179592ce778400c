"""Filters: what matches, what never raises, and what is refused."""

from __future__ import annotations

import json
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sqlqueue import ConfigurationError
from sqlqueue.core.filters import MOST_SOUGHT, Filter
from sqlqueue.core.settle_plan import FetchedMessage
from tests.json_texts import condition, json_text

pytestmark = pytest.mark.once

PAYLOAD = {
    "total": 100,
    "rate": 1.0,
    "paid": True,
    "note": None,
    "name": 'Jörg "J" O\'Neil\\',
    "number": "100",
    "at": "2026-01-31T12:00:00Z",
    "tags": ["vip", 7, None, ["x"]],
    "items": [{"sku": "a-1"}, {"sku": "b-2"}],
    "0": "zero",
    "a__b": 1,
    "deep": {"er": {"still": "here"}},
}
PLAIN = json.dumps({**PAYLOAD, "name": "Jörg"}, ensure_ascii=False)  # has no escapes
HEADERS = {"country": "DE", "retries": 3, "traceparent": "00-x"}


def message(payload: Any = PAYLOAD, headers: Any = HEADERS, body: bytes | None = None) -> FetchedMessage:
    text = None if headers is None else json.dumps(headers, ensure_ascii=False)
    return FetchedMessage(7, "k-1", "order-7", json.dumps(payload), text, None, "", body=body)


@pytest.mark.parametrize(
    "where",
    [
        {"headers.country": "DE"},
        {"headers.country": ["AT", "DE"]},
        {"headers.country__in": ("AT", "DE")},
        {"headers.country__exact": "DE"},
        {"headers.country": "DE", "payload.total__gte": 100, "key": "k-1", "id__startswith": "order-"},
        {"payload.total": 100},
        {"payload.total": 100.0},
        {"payload.rate": 1},
        {"payload.total": IntEnum("Size", {"BIG": 100}).BIG},
        {"payload.total__gt": 99.5},
        {"payload.total__lte": 100},
        {"payload.total__lt": 10**400},
        {"payload.paid": True},
        {"payload.note": None},
        {"payload.note": [1, None]},
        {"payload.note__exists": True},
        {"payload.nothing__exists": False},
        {"payload.total.below__exists": False},
        {"payload.name": PAYLOAD["name"]},
        {"payload.name__startswith": 'Jörg "'},
        {"payload.name__contains": "O'N"},
        {"payload.name__contains": '" O'},
        {"payload.at__gte": "2026-01-31"},
        {"payload.tags__contains": "vip"},
        {"payload.tags__contains": 7},
        {"payload.tags__contains": None},
        {"payload.items.1.sku": "b-2"},
        {"payload.0": "zero"},
        {"payload.a__b__exact": 1},
        {"payload.deep.er.still": "here"},
        {"key": ["k-1", "k-2"]},
        {"id__lt": "order-8"},
    ],
    ids=str,
)
def test_what_matches(where: dict[str, Any]) -> None:
    assert Filter(where).matches(message())
    decoded = message()._replace(payload=PAYLOAD, headers=HEADERS)  # some drivers decode JSON
    assert Filter(where).matches(decoded)
    escaped = message()._replace(payload=json.dumps(PAYLOAD, indent=1), headers=" " + json.dumps(HEADERS) + "\n")
    assert Filter(where).matches(escaped)
    if "payload.name" not in str(where):
        assert Filter(where).matches(message()._replace(payload=PLAIN))


@pytest.mark.parametrize(
    "where",
    [
        {"headers.country": "FR"},
        {"headers.country": "D"},
        {"headers.country": "DE", "payload.total__gte": 101},
        {"headers.language": "de"},
        {"headers.language__gte": ""},
        # Of another type.
        {"payload.total": "100"},
        {"payload.number": 100},
        {"payload.number__gte": 1},
        {"payload.total__gte": "1"},
        {"payload.paid": 1},
        {"payload.rate": True},
        {"payload.paid__gte": 0},
        {"payload.note__lte": 5},
        {"payload.note": [0, "", False]},
        {"payload.tags__gt": 1},
        {"payload.tags": "vip"},
        {"payload.total__startswith": "1"},
        {"payload.total__contains": "1"},
        {"payload.number__contains": 1},
        {"payload.deep__contains": "er"},
        {"payload.deep": "er"},
        {"payload.tags__contains": True},
        # Not there.
        {"payload.note__exists": False},
        {"payload.nothing__exists": True},
        {"payload.total.below": 1},
        {"payload.items.2.sku": "c-3"},
        {"payload.items.-1.sku": "b-2"},
        {"payload.items.99999999999999999999.sku": "b-2"},
        {"payload.items.sku": "a-1"},
        {"payload.name.0": "J"},
        {"payload": 5},
        {"key": "k"},
        {"id__contains": "8"},
    ],
    ids=str,
)
def test_what_does_not(where: dict[str, Any]) -> None:
    assert not Filter(where).matches(message())
    assert not Filter(where).matches(message()._replace(payload=PAYLOAD, headers=HEADERS))
    assert not Filter(where).matches(message()._replace(payload=PLAIN))


def test_without_headers_and_of_bytes() -> None:
    assert not Filter({"headers.country": "DE"}).matches(message(headers=None))
    assert Filter({"headers.country__exists": False}).matches(message(headers=None))
    of_bytes = message(None, body=b"x")
    assert not Filter({"payload": None}).matches(of_bytes)
    assert not Filter({"payload.total__gte": 0}).matches(of_bytes)
    assert Filter({"payload__exists": False, "headers.country": "DE"}).matches(of_bytes)


def test_a_payload_that_is_no_object() -> None:
    assert Filter({"payload__gte": 5}).matches(message(5))
    assert Filter({"payload__contains": "b"}).matches(message(["a", "b"]))
    assert Filter({"payload.1": "b"}).matches(message(["a", "b"]))
    assert not Filter({"payload.x": 1}).matches(message("x"))


def test_what_cannot_be_read_is_left_to_the_handler() -> None:
    deep = message()._replace(payload="[" * 100_000 + "]" * 100_000)
    assert Filter({"payload.x__exists": True}).matches(deep)
    assert not Filter({"payload.x__exists": True, "headers.country": "FR"}).matches(deep)
    long = message()._replace(payload='{"x": 1' + "0" * 5000 + "}")
    assert Filter({"payload.x__lt": 1}).matches(long)


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ({"payload.x__gte": 2**53 + 1}, True),
        ({"payload.x__gt": 2**53 + 1}, False),
        ({"payload.x": [1, 2**53 + 1]}, True),
        ({"payload.in.y__lte": -150}, True),
        ({"payload.in.y__lt": -150}, False),
        ({"payload.in.ö": 0.5}, True),
        ({"payload.in.y": [7, True]}, False),
        ({"payload.rows.1": 8}, True),
        ({"payload.more.0.x": 9}, True),
        ({"payload.more.0.x": 5}, False),
        ({"payload.text__gte": 1}, False),
        ({"payload.0": 3}, True),
    ],
)
def test_numbers_are_found_in_the_text(where: dict[str, Any], found: bool) -> None:
    text = (
        '{"x" :\n 9007199254740993, "in": {"y": -1.5e2, "ö":0.5}, "rows": [7, 8], "more": [{"x": 9}], "text": "5",'
        ' "0": 3}'
    )
    assert Filter(where).matches(message()._replace(payload=text)) is found
    assert Filter(where).matches(message()._replace(payload=text.replace("ö", "\\u00f6"))) is found


@given(
    st.dictionaries(
        st.sampled_from("ab"),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text('ab:1"\\é'),
            lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from("ab"), inner),
        ),
    ),
    st.integers(-3, 3) | st.floats(-3, 3),
    st.sampled_from(["payload.a", "payload.a__gte", "payload.a.b__lt", "payload.b.0__gt", "payload.b__in"]),
    st.booleans(),
)
def test_the_texts_and_numbers_that_are_looked_for_leave_out_nothing_that_matches(
    payload: Any, value: float, name: str, escaped: bool
) -> None:
    where = Filter({name: [value] if name.endswith("__in") else value})
    text = json.dumps(payload, ensure_ascii=escaped)
    as_values = message()._replace(payload=payload)  # as a driver gives it that reads JSON: nothing is looked for
    assert where.matches(message()._replace(payload=text)) is where.matches(as_values)


@settings(max_examples=300)
@given(st.data())
def test_what_shows_in_the_text_leaves_out_nothing_that_matches(data: st.DataObject) -> None:
    def choose(some: Any) -> Any:
        return data.draw(st.sampled_from(some))

    text, conditions = json_text(choose), condition(choose)
    where, stored = Filter(conditions), message()._replace(payload=text)
    as_values = message()._replace(payload=json.loads(text))
    assert where.matches(stored) is where.matches(as_values), (conditions, text)
    assert where.select([stored, as_values]) == ([stored, as_values] if where.matches(as_values) else [])


def test_a_name_that_stands_between_quotation_marks_before_itself() -> None:
    for name in (",", ", "):
        assert Filter({f"payload.{name}": 5}).matches(message()._replace(payload=f'{{"a":"b"{name}"{name}":5}}'))


def test_texts_without_escapes() -> None:
    plain = message()._replace(payload=PLAIN)
    assert Filter({"payload.name": ["Ann", "Jörg"]}).matches(plain)
    assert Filter({"payload.name__startswith": "Jö"}).matches(plain)
    assert Filter({"payload.name__contains": "ör"}).matches(plain)
    assert not Filter({"payload.name": "Jör"}).matches(plain)
    assert not Filter({"payload.name__startswith": "ör"}).matches(plain)


def test_more_texts_than_are_looked_for() -> None:
    many = [f"c{n}" for n in range(MOST_SOUGHT + 1)]
    assert Filter({"headers.country": [*many, "DE"]}).matches(message())
    assert not Filter({"headers.country": many}).matches(message())


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ({}, "where must be a dict of conditions"),
        ([("key", 1)], "where must be a dict of conditions"),
        (
            {"payload.x__startwith": 1},
            r"no lookup 'startwith'\. Did you mean 'startswith'\?.*'payload\.x__startwith__exact'",
        ),
        ({"header.country": "DE"}, r"no field 'header'\. Did you mean 'headers'\?"),
        ({"": 1}, "no field ''"),
        ({5: 1}, "name a path"),
        ({"headers": 1}, "name one of the headers"),
        ({"headers__exists": True}, "name one of the headers"),
        ({"payload..x": 1}, "a name between two dots is empty"),
        ({"payload.": 1}, "is empty"),
        ({"key": 5}, "'key' is a text, and never equals 5"),
        ({"id__in": ["a", 5]}, "'id' is a text, and never equals"),
        ({"key.x": "a"}, "'key' is a text"),
        ({"key__exists": True}, "'key' is a text that every message has"),
        ({"payload.x": []}, "an empty list matches nothing"),
        ({"payload.x": {}}, "a value must be a text, a number"),
        ({"payload.x": [[1]]}, "a value must be a text, a number"),
        ({"payload.x": b"x"}, "a value must be a text, a number"),
        ({"payload.x": float("nan")}, "no JSON number equals nan"),
        ({"payload.x__gte": float("inf")}, "no JSON number equals inf"),
        ({"payload.x__gte": None}, "only numbers and texts have an order"),
        ({"payload.x__gte": True}, "only numbers and texts have an order"),
        ({"payload.x__gte": [1]}, "a value must be a text"),
        ({"payload.x__in": "DE"}, "'in' takes a list"),
        ({"payload.x__exists": 1}, "'exists' takes True or False"),
        ({"payload.x__startswith": 1}, "'startswith' takes a text"),
        ({"payload.x__startswith": ""}, "'startswith' takes a text"),
        ({"payload.x__contains": ["a"]}, "a value must be a text"),
        ({"payload.x__gr": 1, "kee": 2}, "where.'payload.x__gr'.: no lookup.*; where.'kee'.: no field"),
    ],
    ids=str,
)
def test_what_is_refused(where: Any, told: str) -> None:
    with pytest.raises(ConfigurationError, match=f"(?s){told}"):
        Filter(where)
