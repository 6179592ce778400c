"""JSON by msgspec says the same as JSON by `json`, and where it would not, `json` has its way."""

import json
import math
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlqueue import InvalidMessage, publish
from sqlqueue.core import codec
from sqlqueue.models import Message

pytestmark = pytest.mark.once

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.characters(codec=None)
ANY = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=20
)
OTHERS = [(1,), {1: 2}, {"a": {None: 1}}, OrderedDict(a=1), b"x", {1, 2}, object(), [[[math.nan]]], -math.inf, 2**64]


@pytest.fixture
def without_msgspec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "fast", lambda: None)


def outcome(read: Any, text: str) -> Any:
    try:
        value = read(text)
    except ValueError:
        return ValueError
    return repr(value)  # tells 1 from 1.0 and True, and NaN is itself


@given(ANY)
def test_what_it_writes_reads_back_the_same(value: Any) -> None:
    text = codec.encode_plain(value)
    if text is not None:
        assert repr(json.loads(text)) == repr(value)
        text.encode()


@given(ANY)
def test_what_it_leaves_to_json_is_what_json_may_refuse_or_change(value: Any) -> None:
    def write() -> None:
        codec.encode(value)
        codec.check_exact(value, "payload", lambda: False)

    if codec.encode_plain(value) is None:
        with pytest.raises(InvalidMessage):
            write()


@pytest.mark.parametrize("value", OTHERS, ids=repr)
def test_other_values_are_left_to_json(value: object) -> None:
    for whole in (value, [value], {"a": [1, value]}):
        assert codec.encode_plain(whole) is None


@given(ANY.map(lambda value: json.dumps(value)) | ANY.map(lambda value: json.dumps(value, indent=1)) | st.text())
def test_every_text_is_read_as_json_reads_it(text: str) -> None:
    assert outcome(codec.decode, text) == outcome(json.loads, text)


TEXTS = ["1e400", "-1e400", "NaN", "18446744073709551616", '"\\ud800"', '{"a": 1, "a": 2}', "-0", "-0.0", "1E5", " 1 "]


@pytest.mark.parametrize("text", [*TEXTS, "[" * 5_000 + "]" * 5_000])
def test_so_are_texts_that_the_two_do_not_read_alike(text: str) -> None:
    try:
        expected = repr(json.loads(text))
    except RecursionError:
        with pytest.raises(RecursionError):
            codec.decode(text)
    else:
        assert repr(codec.decode(text)) == expected


@pytest.mark.django_db
def test_without_msgspec_nothing_changes(without_msgspec: None) -> None:
    publish("t", {"a": [1, "é", None]})
    assert codec.encode_plain({}) is None
    assert codec.decode('{"a": 1.5}') == {"a": 1.5}
    assert Message.objects.get().payload == {"a": [1, "é", None]}
