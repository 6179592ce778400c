"""JSON text: what goes in comes out, what JSON cannot say is refused."""

import json
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlqueue.core import codec
from sqlqueue.exceptions import InvalidMessage

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
