"""JSON text: what goes in comes out, what JSON cannot say is refused."""

import enum
import json
import re
from collections import Counter, OrderedDict, defaultdict
from datetime import date
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlqueue.core import codec
from sqlqueue.exceptions import InvalidMessage

pytestmark = pytest.mark.once

TEXT = st.text(st.characters(exclude_categories=("Cs",)))
NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_what_goes_in_comes_out(value: object) -> None:
    text = codec.encode(value)
    assert codec.decode(text) == value
    assert codec.decode(text.encode()) == value
    assert json.loads(text) == value


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), date(2013, 1, 1), {1, 2}, b"x", "\ud800", {"a": object()}]
)
def test_what_json_cannot_say_is_refused(value: object) -> None:
    with pytest.raises(InvalidMessage, match="payload"):
        codec.encode(value)


def test_what_refers_to_itself_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(InvalidMessage):
        codec.encode(loop)


class Colour(enum.IntEnum):
    RED = 1


class Huge(enum.IntEnum):
    ONE = 2**70


class Word(str, enum.Enum):
    YES = "yes"


class Pair(NamedTuple):
    first: int
    second: int


INNER = [(1, 2), (), Pair(1, 2), {1: 2}, {None: 1}, {True: 1}, {1.5: 1}, {Colour.RED: 1}]
EQUAL = [Colour.RED, Word.YES, {Word.YES: 1}, defaultdict(list, a=[1]), OrderedDict(a=1), Counter("ab")]


@pytest.mark.parametrize("inner", INNER, ids=repr)
def test_what_comes_back_changed_is_refused_wherever_it_stands(inner: object) -> None:
    for value in (inner, [inner], {"a": [1, {"b": inner}]}, [[], {}, inner], OrderedDict(a=inner), [[1, inner], 2]):
        assert codec.decode(codec.encode(value)) != value
        with pytest.raises(InvalidMessage, match=r"payload.* would come back as a (list|string).*: use (list|str)\("):
            codec.check_exact(value, "payload", lambda: True)


@pytest.mark.parametrize("value", EQUAL, ids=repr)
def test_what_comes_back_equal_is_taken(value: object) -> None:
    for whole in (value, [value], {"a": [value]}):
        assert codec.decode(codec.encode(whole)) == whole
        codec.check_exact(whole, "payload", lambda: True)


MIXED = st.recursive(
    JSON | st.sampled_from([*INNER, *EQUAL]), lambda inner: st.lists(inner, max_size=3) | st.tuples(inner)
)


@given(MIXED)
def test_what_is_refused_is_what_would_not_be_equal(value: object) -> None:
    equal = codec.decode(codec.encode(value)) == value
    try:
        codec.check_exact(value, "payload", lambda: False)
        assert equal
    except InvalidMessage:
        assert not equal


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**30, Huge.ONE], ids=repr)
def test_whole_numbers_beyond_64_bits_are_refused_where_the_database_does_not_keep_them(number: int) -> None:
    for value in (number, [1, number], {"a": {"b": [number]}}):
        codec.check_exact(value, "payload", lambda: True)
        with pytest.raises(InvalidMessage, match=r"payload.* would come back as a float.*: use str\("):
            codec.check_exact(value, "payload", lambda: False)
    with pytest.raises(InvalidMessage, match="list"):  # one that is kept hides nothing else
        codec.check_exact([number, (1,)], "payload", lambda: True)


@pytest.mark.parametrize("number", [2**64 - 1, -(2**63), True, 1e300], ids=repr)
def test_and_all_others_are_taken_without_asking(number: float) -> None:
    def never() -> bool:
        raise AssertionError("asked")

    for value in (number, [number], {"a": number}):
        codec.check_exact(value, "payload", never)


def test_a_refusal_says_where_it_stands() -> None:
    with pytest.raises(InvalidMessage, match=re.escape("payload['lines'][1] would come back as a list")):
        codec.check_exact({"lines": [1, (2, 3)]}, "payload", bool)
    with pytest.raises(InvalidMessage, match=re.escape("headers['h'] has the key 7, which would come back as a str")):
        codec.check_exact({"h": {7: "x"}}, "headers", bool)


def test_what_is_nested_too_deep_for_python_is_refused() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    for refuse in (codec.encode, lambda value: codec.check_exact(value, "payload", lambda: True)):
        with pytest.raises(InvalidMessage):
            refuse(deep)
    while deep:  # its end would be as deep
        deep = deep.pop()  # type: ignore[assignment]


def test_headers_are_a_dict_of_strings_or_nothing() -> None:
    assert codec.encode_headers(None) is None
    assert codec.encode_headers({}) is None
    assert codec.encode_headers({"a": 1}) == '{"a":1}'
    for bad in ([1], "x", {1: 2}):
        with pytest.raises(InvalidMessage):
            codec.encode_headers(bad)


@given(JSON)
def test_a_column_is_text_again_whatever_the_driver_gave(value: object) -> None:
    if value is not None and not isinstance(value, str):
        assert codec.decode(codec.as_text(value)) == value
    assert codec.as_text(codec.encode(value)) == codec.encode(value)
    assert codec.as_text(None) is None


def test_a_long_number_beside_what_is_nested_too_deep_is_refused() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidMessage, match="nested too deep"):
        codec.check_exact([2**70, deep], "payload", lambda: True)
